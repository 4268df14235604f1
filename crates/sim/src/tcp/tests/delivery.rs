//! Every byte arrives once and in order.
