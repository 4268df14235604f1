//! Forwards bytes between clients and servers, with a module for each mode.
//!
//! | module | mode |
//! | --- | --- |
//! | `stream` | a TCP connection on one link: plain mode, DBAS's connection-oriented one |
//! | `answer` | the answer to one plain HTTP request |
//! | `parts` | the body of such an answer, over several links by byte ranges |
//! | `stripe` | a TCP connection over all links, to another host that runs pleach: DBAS's packet-oriented mode |
//! | `udp` | SOCKS5's UDP ASSOCIATE, one link for each destination |
//! | `meter` | counting bytes and reading from sockets, for several modes |
//! | `pipe` | `splice(2)` from socket to socket, for several modes |

pub(crate) mod answer;
mod meter;
mod parts;
pub mod pipe;
pub(crate) mod stream;
pub(crate) mod stripe;
pub(crate) mod udp;
