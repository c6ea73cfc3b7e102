//! Every bound of the reader, in one place, so that memory and time per page can be reasoned about.

/// Most bytes of a page that is read. A page of one engine has 55 to 75 KB, and each further rank adds some 20 KB.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// Most bytes of one line; a longer one is a flaw. `cache_config_info` has about 1 KB.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Most labels of one line; a line with more is a flaw. `cache_config_info` has about 40.
pub const LABELS_MAX: usize = 128;

/// Most bytes of an engine label or a model name that is kept; a line with a longer one is a flaw.
pub const NAME_BYTES_MAX: usize = 256;

/// Most (engine, model) pairs of a page. Lines of further pairs are left out and counted.
pub const ENGINES_MAX: usize = 64;

/// Most LoRA adapters of one list; the rest is left out.
pub const ADAPTERS_MAX: usize = 256;
