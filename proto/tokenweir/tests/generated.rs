//! The checked-in code is what the .proto file says. `UPDATE_GENERATED=1 cargo test -p proto-tokenweir` rewrites it.
use std::path::Path;

#[test]
fn the_generated_code_is_current() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let set = protox::compile(["tokenweir/v1/reports.proto"], [here.join("proto")])
        .expect("reports.proto compiles");
    let out = std::env::temp_dir().join(format!("tokenweir-generated-{}", std::process::id()));
    let (messages, service) = (out.join("messages"), out.join("service"));
    for dir in [&messages, &service] {
        std::fs::create_dir_all(dir).expect("temporary folder");
    }
    prost_build::Config::new().out_dir(&messages).compile_fds(set.clone()).expect("messages");
    tonic_prost_build::configure()
        .build_client(true)
        .extern_path(".tokenweir.v1", "::proto_tokenweir::v1")
        .out_dir(&service)
        .compile_fds(set)
        .expect("service");
    let pairs = [
        (messages.join("tokenweir.v1.rs"), here.join("src/generated/tokenweir.v1.rs")),
        (service.join("tokenweir.v1.rs"), here.join("../../ext-proc/server/src/generated/tokenweir.v1.rs")),
    ];
    for (fresh, kept) in pairs {
        let fresh = std::fs::read_to_string(fresh).expect("generated file");
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            std::fs::write(&kept, &fresh).expect("write");
        }
        let kept_text = std::fs::read_to_string(&kept).unwrap_or_default();
        assert!(
            kept_text == fresh,
            "{} is stale: run UPDATE_GENERATED=1 cargo test -p proto-tokenweir",
            kept.display()
        );
    }
    std::fs::remove_dir_all(out).expect("clean up");
}
