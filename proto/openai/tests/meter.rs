//! The response meter on what a real vLLM sent, cut in every way.

#[cfg(test)]
#[path = "meter/captures.rs"]
mod captures;
#[cfg(test)]
#[path = "meter/memory.rs"]
mod memory;
#[cfg(test)]
#[path = "meter/splits.rs"]
mod splits;
#[cfg(test)]
#[path = "meter/strip.rs"]
mod strip;
#[cfg(test)]
#[path = "meter/support.rs"]
mod support;
