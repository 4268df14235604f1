//! What is known of one path, and how it is paced.
