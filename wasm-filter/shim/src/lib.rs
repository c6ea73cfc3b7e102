//! Host calls only.
