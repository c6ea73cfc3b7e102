//! A scripted proxy for tests.
