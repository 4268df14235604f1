//! Moving bytes between clients and servers, a module for each mode.
//!
//! | module | mode |
//! | --- | --- |
//! | `stream` | a TCP connection on one link: plain mode, DBAS's connection-oriented one |
//! | `answer` | the answer to one plain HTTP request |
//! | `parts` | the body of such an answer, over several links by ranges of its bytes |
//! | `stripe` | a TCP connection over all links, to another pleach: DBAS's packet-oriented one |
//! | `udp` | SOCKS5's UDP ASSOCIATE, one link for each destination |
//! | `meter` | what the others have in common |
//! | `pipe` | `splice(2)` from socket to socket, which the others use |

pub(crate) mod answer;
mod meter;
mod parts;
pub mod pipe;
pub(crate) mod stream;
pub(crate) mod stripe;
pub(crate) mod udp;
