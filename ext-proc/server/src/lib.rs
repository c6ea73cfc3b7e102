//! The ext_proc service, as a library: its binary is `tokenweir`.

pub mod config;
