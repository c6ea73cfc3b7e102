//! The filter's logic, pure behind one Host trait.
