//! The equalizer as a program, between two veth links: packets are shared as told, also while that changes; links come and
//! go; nothing stays behind.

mod holding;
mod lab;
mod links;
mod shares;
mod undo;
mod world;
