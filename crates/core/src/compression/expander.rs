//! The receiver's part: templates by number.

use super::{MARK, NUMBERS, TEMPLATES, Template, distance};
use crate::packet::PacketBuf;

/// The templates of one association's receiving direction. Allocated with the first template.
#[derive(Debug, Default)]
pub struct Expander {
    templates: Vec<Option<Box<(u16, Template)>>>,
}

/// Reason for which a compressed packet cannot be expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The template is unknown or was replaced.
    #[error("unknown template {0}")]
    UnknownTemplate(u16),
    /// The bytes are too short, or the packet would be too long.
    #[error("not a packet")]
    Malformed,
}

impl Expander {
    /// Stores a template, which replaces a template with the same number or with a number 512 lower. Returns whether it
    /// was stored: a late template is ignored if its place contains a newer template.
    pub fn define(&mut self, number: u16, template: Template) -> bool {
        if self.templates.is_empty() {
            self.templates.resize_with(TEMPLATES.into(), || None);
        }
        let slot = &mut self.templates[usize::from(number % TEMPLATES)];
        let is_older = |known: u16| known != number && distance(known, number) < NUMBERS / 2;
        if slot.as_deref().is_some_and(|(known, _)| is_older(*known)) {
            return false;
        }
        *slot = Some(Box::new((number, template)));
        true
    }

    /// Expands the compressed packet `bytes` into `out`.
    ///
    /// # Errors
    /// [`ExpandError`]; `out` is then unspecified.
    pub fn expand(&self, bytes: &[u8], out: &mut PacketBuf) -> Result<(), ExpandError> {
        let (number, rest) = bytes
            .split_first_chunk::<2>()
            .ok_or(ExpandError::Malformed)?;
        let number = u16::from_be_bytes([number[0] & !MARK, number[1]]);
        let slot = self.templates.get(usize::from(number % TEMPLATES));
        let template = slot.and_then(Option::as_deref);
        let template = template.filter(|(known, _)| *known == number);
        let (_, template) = template.ok_or(ExpandError::UnknownTemplate(number))?;
        let (travelled, rest) = rest
            .split_at_checked(template.travelling_len())
            .ok_or(ExpandError::Malformed)?;
        let headers = template.expand(travelled, rest.len());
        let headers = headers.ok_or(ExpandError::Malformed)?;
        out.fill_from(headers.as_slice());
        out.extend(rest);
        Ok(())
    }

    /// Removes all templates.
    pub fn clear(&mut self) {
        self.templates.clear();
    }
}
