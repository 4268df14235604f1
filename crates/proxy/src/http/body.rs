//! Finds where the body of a message ends.
//!
//! Bytes after the body of a request belong to another request, perhaps for another server, and must not reach this
//! server. Bytes after the body of an answer belong to another answer. So bodies are measured while they are
//! forwarded unchanged (RFC 9112, section 6): by their length, or chunk by chunk.

/// The part of a message's body that has not been forwarded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// `Transfer-Encoding: chunked`.
    Chunked(Chunks),
    /// A known length: the number of bytes that have not been forwarded yet.
    Length(u64),
    /// Not an HTTP message: all further bytes belong to the connection.
    Tunnel,
}

/// Parser state in a chunked body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    state: State,
    /// Remaining bytes of the current chunk, or bytes of the current line.
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the data of a chunk.
    Data,
    /// Before and within the line end after the data.
    DataCr,
    DataLf,
    /// After a chunk's length, where only an extension may follow.
    Blank,
    /// After the last line.
    Done,
    /// In a chunk's extension, up to the end of the line.
    Extension,
    /// In a chunk's length.
    Size,
    /// Within the line end after length and extension.
    SizeLf,
    /// Before a chunk's length: a digit must follow.
    Start,
    /// In a trailer line, of which `left` bytes have been read.
    Trailer,
    /// In the line end of a trailer line.
    TrailerLf,
}

impl Body {
    /// Returns a chunked body at its beginning.
    #[must_use]
    pub const fn chunked() -> Self {
        Self::Chunked(Chunks {
            state: State::Start,
            left: 0,
        })
    }

    /// Returns the body that the fields of an HTTP/1.`version` request announce.
    ///
    /// # Errors
    /// Fails if the fields contradict each other or name another coding. The request must then be refused, because
    /// other implementations might see the end of the body elsewhere.
    pub fn of_request(version: u8, fields: &[httparse::Header<'_>]) -> Result<Self, &'static str> {
        let mut length = None;
        let mut is_chunked = false;
        for field in fields {
            if field.name.eq_ignore_ascii_case("content-length") {
                let text = core::str::from_utf8(field.value).unwrap_or_default();
                let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let number: Option<u64> = is_number.then(|| text.parse().ok()).flatten();
                let number = number.ok_or("Content-Length is no number")?;
                if length.is_some_and(|other| other != number) {
                    return Err("two Content-Length that differ");
                }
                length = Some(number);
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                // RFC 9112, 6.1: such framing is faulty.
                if version == 0 {
                    return Err("Transfer-Encoding in HTTP/1.0");
                }
                if is_chunked || !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err("a Transfer-Encoding other than chunked");
                }
                is_chunked = true;
            }
        }
        match (is_chunked, length) {
            (true, Some(_)) => Err("Transfer-Encoding and Content-Length together"),
            (true, None) => Ok(Self::chunked()),
            (false, length) => Ok(Self::Length(length.unwrap_or(0))),
        }
    }

    /// Returns how many of the next bytes `bytes` belong to the body, and counts them as forwarded.
    ///
    /// # Errors
    /// Fails if the chunks are malformed.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        match self {
            Self::Chunked(chunks) => chunks.take(bytes),
            Self::Length(left) => {
                let len = bytes.len() as u64;
                let taken = len.min(*left);
                *left -= taken;
                Ok(usize::try_from(taken).unwrap_or(bytes.len()))
            }
            Self::Tunnel => Ok(bytes.len()),
        }
    }

    /// Whether the whole body has been forwarded.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self {
            Self::Chunked(chunks) => chunks.state == State::Done,
            Self::Length(left) => *left == 0,
            Self::Tunnel => false,
        }
    }
}

/// A malformed chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is not chunked as it should be")]
pub struct BadChunk;

impl Chunks {
    fn take(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        let mut at = 0;
        while at < bytes.len() && self.state != State::Done {
            if self.state == State::Data {
                let available = (bytes.len() - at) as u64;
                let taken = available.min(self.left);
                self.left -= taken;
                at += usize::try_from(taken).unwrap_or(bytes.len() - at);
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                continue;
            }
            self.take_byte(bytes[at])?;
            at += 1;
        }
        Ok(at)
    }

    /// Processes one byte of a line. A line end must be two bytes: implementations that accept other line ends would
    /// see other chunks.
    fn take_byte(&mut self, byte: u8) -> Result<(), BadChunk> {
        match (self.state, byte) {
            (State::Start, _) => {
                self.left = char::from(byte).to_digit(16).ok_or(BadChunk)?.into();
                self.state = State::Size;
            }
            (State::Size | State::Blank, b' ' | b'\t') => self.state = State::Blank,
            (State::Size | State::Blank, b';') => self.state = State::Extension,
            (State::Size | State::Blank | State::Extension, b'\r') => self.state = State::SizeLf,
            (State::Size, _) => {
                let digit = char::from(byte).to_digit(16).ok_or(BadChunk)?;
                let grown = self.left.checked_mul(16).ok_or(BadChunk)?;
                self.left = grown.checked_add(digit.into()).ok_or(BadChunk)?;
                if self.left > MAX_CHUNK {
                    return Err(BadChunk);
                }
            }
            (State::SizeLf, b'\n') if self.left == 0 => self.state = State::Trailer,
            (State::SizeLf, b'\n') => self.state = State::Data,
            (State::DataCr, b'\r') => self.state = State::DataLf,
            (State::DataLf, b'\n') => self.state = State::Start,
            (State::Trailer, b'\r') => self.state = State::TrailerLf,
            (State::TrailerLf, b'\n') if self.left == 0 => self.state = State::Done,
            (State::TrailerLf, b'\n') => {
                self.left = 0;
                self.state = State::Trailer;
            }
            (State::Extension | State::Trailer, b'\n')
            | (
                State::Blank | State::SizeLf | State::DataCr | State::DataLf | State::TrailerLf,
                _,
            ) => {
                return Err(BadChunk);
            }
            (State::Trailer, _) => self.left += 1,
            (State::Extension | State::Data | State::Done, _) => {}
        }
        Ok(())
    }
}

/// Maximum length of a chunk in bytes. A chunk of a tebibyte can only be an attack or an error.
const MAX_CHUNK: u64 = 1 << 40;
