//! Exchange records: opened at the verdict, closed by report or lease.
