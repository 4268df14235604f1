//! How much of what a client sends belongs to a plain HTTP request, and of what a server sends to its answer.
//!
//! What comes after it is another message, perhaps of another server's, and must not be taken for a part of this one. So the
//! body is measured while it is passed on unchanged (RFC 9112, section 6): by its length, or chunk by chunk. Chunks are read
//! strictly, every line to its CR LF: what others could read otherwise is an error.

/// The body of a request or an answer, as far as it has not passed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// `Transfer-Encoding: chunked`.
    Chunked(Chunks),
    /// This many bytes more.
    Length(u64),
    /// Everything that comes on the connection belongs to it, until that ends.
    Tunnel,
}

/// Where in a chunked body we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    state: State,
    /// Bytes of the current chunk, or of the line that is being read.
    left: u64,
    /// Bytes of extensions and trailer so far.
    extra: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the data of a chunk.
    Data,
    /// Behind the data of a chunk: a line end must come.
    DataEnd,
    /// Behind the last line.
    Done,
    /// In a chunk's extension, up to the end of the line.
    Extension,
    /// Behind the carriage return that ends a line: of a chunk's data, of its length, of the trailer.
    LineFeed(Line),
    /// In a chunk's length.
    Size,
    /// Before a chunk's length: a digit must come.
    Start,
    /// In a trailer line of so far `left` bytes.
    Trailer,
}

/// A line of a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Data,
    Size,
    Trailer,
}

impl Body {
    /// What the fields of a request of HTTP/1.`version` say of its body.
    ///
    /// # Errors
    /// They contradict each other, or name another coding: the request must be refused, because others might read it
    /// otherwise.
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
                // RFC 9112, 6.1: the framing is taken to be faulty.
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

    /// A chunked body of which nothing has come.
    #[must_use]
    pub const fn chunked() -> Self {
        Self::Chunked(Chunks {
            state: State::Start,
            left: 0,
            extra: 0,
        })
    }

    /// How many bytes come next that belong to the body whatever they are; [`Self::take`] need not see them but for their
    /// number ([`Self::skip`]).
    #[must_use]
    pub const fn run(&self) -> u64 {
        match self {
            Self::Chunked(Chunks {
                state: State::Data,
                left,
                ..
            })
            | Self::Length(left) => *left,
            Self::Chunked(_) => 0,
            Self::Tunnel => u64::MAX,
        }
    }

    /// Counts `len` bytes as passed, at most [`Self::run`].
    pub fn skip(&mut self, len: u64) {
        match self {
            Self::Chunked(chunks) => chunks.skip(len),
            Self::Length(left) => *left = left.saturating_sub(len),
            Self::Tunnel => {}
        }
    }

    /// How many of `bytes`, the next that came, belong to the body; counts them as passed.
    ///
    /// # Errors
    /// The body is not chunked as it should be.
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

    /// Whether all of it has passed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match self {
            Self::Chunked(chunks) => chunks.state == State::Done,
            Self::Length(left) => *left == 0,
            Self::Tunnel => false,
        }
    }
}

/// A chunked body that is none.
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
                self.skip(taken);
                at += usize::try_from(taken).unwrap_or(bytes.len() - at);
                continue;
            }
            self.take_byte(bytes[at])?;
            at += 1;
        }
        Ok(at)
    }

    fn skip(&mut self, len: u64) {
        self.left = self.left.saturating_sub(len);
        if self.left == 0 {
            self.state = State::DataEnd;
        }
    }

    /// One byte of a line.
    fn take_byte(&mut self, byte: u8) -> Result<(), BadChunk> {
        self.state = match (self.state, byte) {
            (State::DataEnd, b'\r') => State::LineFeed(Line::Data),
            (State::Size | State::Extension, b'\r') => State::LineFeed(Line::Size),
            (State::Trailer, b'\r') => State::LineFeed(Line::Trailer),
            (State::LineFeed(Line::Data), b'\n') => State::Start,
            (State::LineFeed(Line::Size), b'\n') if self.left > 0 => State::Data,
            (State::LineFeed(Line::Size), b'\n') => State::Trailer,
            (State::LineFeed(Line::Trailer), b'\n') if self.left == 0 => State::Done,
            (State::LineFeed(Line::Trailer), b'\n') => {
                self.left = 0;
                State::Trailer
            }
            (State::Start, _) => {
                self.left = char::from(byte).to_digit(16).ok_or(BadChunk)?.into();
                State::Size
            }
            (State::Size, b';' | b' ' | b'\t') => State::Extension,
            (State::Size, _) => {
                let digit = char::from(byte).to_digit(16).ok_or(BadChunk)?;
                let grown = self.left.checked_mul(16).ok_or(BadChunk)?;
                self.left = grown.checked_add(digit.into()).ok_or(BadChunk)?;
                if self.left > MAX_CHUNK {
                    return Err(BadChunk);
                }
                State::Size
            }
            (State::Extension | State::Trailer, b'\n' | 0)
            | (State::DataEnd | State::LineFeed(_), _) => return Err(BadChunk),
            (State::Extension, _) => {
                self.count_extra()?;
                State::Extension
            }
            (State::Trailer, _) => {
                self.left += 1;
                self.count_extra()?;
                State::Trailer
            }
            (State::Data | State::Done, _) => self.state,
        };
        Ok(())
    }

    fn count_extra(&mut self) -> Result<(), BadChunk> {
        self.extra += 1;
        if self.extra > MAX_EXTRA {
            return Err(BadChunk);
        }
        Ok(())
    }
}

/// No honest sender has chunks of a tebibyte.
const MAX_CHUNK: u64 = 1 << 40;

/// Extensions of chunks and the trailer of a body have at most so many bytes together.
const MAX_EXTRA: u64 = 64 << 10;
