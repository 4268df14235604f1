//! HTTP/1 messages, as far as a proxy has to understand them (RFC 9110, 9112).
//!
//! | module | content |
//! | --- | --- |
//! | [`answer`] | the head of a server's answer |
//! | [`body`] | where the body of a message ends |
//! | [`ranges`] | byte ranges of a server's resource |
//! | `fields` | where a head ends, and which fields are hop-by-hop |

pub mod answer;
pub mod body;
pub(crate) mod fields;
pub mod ranges;

pub use body::Body;
