//! `tokenweir`: the ext_proc service.

use std::process::ExitCode;

fn main() -> ExitCode {
    ext_proc_server::cli::main()
}
