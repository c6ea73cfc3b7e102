//! Given a state of the pool, who is picked, in which order, and why.

mod faults;
mod learning;
mod load;
mod scene;
mod signals;
