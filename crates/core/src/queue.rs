//! The tunnel queue.
