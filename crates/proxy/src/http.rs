//! HTTP/1 messages as far as a proxy has to understand them (RFC 9110, 9112).
//!
//! | module | what |
//! | --- | --- |
//! | [`answer`] | the head of what a server answers |
//! | [`body`] | where the body of a message ends |
//! | [`ranges`] | parts of what a server has |
//! | `fields` | where a head ends, and which fields are for the next hop only |

pub mod answer;
pub mod body;
pub(crate) mod fields;
pub mod ranges;

pub use body::Body;
