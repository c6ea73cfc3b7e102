//! One record per exchange: opened in memory at the verdict, closed exactly once by the filter's report, or by its lease
//! when no report comes; a report that comes after the lease appends a correction, never a second charge. Pure: time
//! comes in as an argument, records go out as values.
//!
//! A record's key is (exchange, revision). Revision 0 is a close without a report; revision 1 is the report's. Whoever
//! reads the log takes the highest revision of an exchange, so that a line that was written twice counts once.

mod book;
mod closed;
mod record;

pub use book::{Answered, Book, Effect, Leases, Outcome, Place, Unknown};
pub use closed::CLOSED_MAX;
pub use record::{End, Record, RecordFlags, Source, UsageRecord};
