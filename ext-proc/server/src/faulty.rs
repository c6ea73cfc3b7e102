//! `tokenweir` with faults on demand (the library's feature `faults`). For the suites only.

use std::process::ExitCode;

fn main() -> ExitCode {
    ext_proc_server::cli::main()
}
