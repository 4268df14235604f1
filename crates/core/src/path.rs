//! What is known of one path, and how it is paced.

pub mod delay;
pub mod health;
pub mod loss;
pub mod pacer;
pub mod rate;
pub mod rtt;
mod window;
