//! What engines say of themselves: scraped, judged, and handed to the pick.
//!
//! Two halves. The history of one target (`history`) decides: how healthy it is, which of its numbers are believed, and
//! when it is looked at again; it does no I/O and gets the time as an argument. The poller (`run`, `poll`, `link`) moves
//! bytes: one task and one kept-alive connection per target.
//!
//! Health comes from progress. vLLM's `/health` answers 200 while the engine sleeps, is paused or drains, so it isn't
//! asked. What counts is whether tokens and requests move while there are requests.
//!
//! A scrape costs vLLM's API process 5 to 8 ms. So targets without requests of ours are asked once a second, others four
//! times, and what changes in between the pick knows from its own books.

mod history;
mod limits;
mod link;
mod models;
mod poll;
mod run;
mod seam;

pub use limits::{SCRAPES_MAX, TARGETS_MAX};
pub use run::run;
pub use seam::{Kind, Outcome, Settings, Sink, Target};
