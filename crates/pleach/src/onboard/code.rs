//! A token as a QR code of characters, for a phone's camera or another host's.

use qrcode::{EcLevel, QrCode, render::unicode::Dense1x2};

/// Lines of half blocks, dark on light as terminals with a dark background show it; `None` if the text is too long.
pub(crate) fn render(text: &str) -> Option<String> {
    // Upper case has a denser mode; tokens are read in any case.
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
