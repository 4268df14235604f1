//! A token as a QR code of characters, for the camera of a phone or of another host.

use qrcode::{EcLevel, QrCode, render::unicode::Dense1x2};

/// Renders `text` as lines of half blocks, for terminals with a dark background. Returns `None` if the text is too
/// long.
pub(crate) fn render(text: &str) -> Option<String> {
    // Upper case has a denser mode in QR codes, and tokens are read in either case.
    let code = QrCode::with_error_correction_level(text.to_ascii_uppercase(), EcLevel::L).ok()?;
    let mut renderer = code.render::<Dense1x2>();
    let renderer = renderer
        .dark_color(Dense1x2::Light)
        .light_color(Dense1x2::Dark);
    Some(renderer.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_fits_a_terminal() {
        let code = render(&format!("pleach1{}", "a".repeat(230))).expect("fits");
        let lines: Vec<&str> = code.lines().collect();
        assert!(
            lines.len() <= 32 && lines[0].chars().count() <= 64,
            "{code}"
        );
        assert!(code.contains('█'));
        assert_eq!(render(&"x".repeat(5000)), None);
    }
}
