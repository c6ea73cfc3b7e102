//! Strategies of the pick against each other: the same seeded load, at the same time, through real Envoy, the service and
//! the filter, each strategy to engines of its own that have the same step model, caches and flaws.
//!
//! Time is engine time: what the step model says, scaled. What the machine's own CPU adds is in every number and in none
//! of the ratios, as far as all strategies meet the same machine; the run says how late its load was and how much CPU
//! each part took.

pub mod drive;
pub mod fleet;
pub mod knee;
pub mod plan;
pub mod summary;
pub mod tables;
pub mod text;
pub mod wire;
pub mod workload;
