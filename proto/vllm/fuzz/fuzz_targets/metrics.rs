//! Any page: no panic, nothing past its bound, and its lines may come in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto_vllm::metrics::{limits, read};

fuzz_target!(|page: &[u8]| {
    let Ok(said) = read(page) else { return };
    assert!(said.engines.len() <= limits::ENGINES_MAX && said.caches.len() <= limits::ENGINES_MAX);
    for stats in &said.engines {
        assert!(stats.engine.len() <= limits::NAME_BYTES_MAX && stats.model.len() <= limits::NAME_BYTES_MAX);
    }
    if let Some(lora) = &said.lora {
        assert!(lora.running.len() <= limits::ADAPTERS_MAX && lora.waiting.len() <= limits::ADAPTERS_MAX);
    }
    // Which engines are past the bound depends on the order, and so does what stands behind `# EOF`.
    if said.left_out > 0 || page.windows(5).any(|word| word == b"# EOF") {
        return;
    }
    let mut lines: Vec<&[u8]> = page.split_inclusive(|byte| *byte == b'\n').collect();
    lines.retain(|line| line.ends_with(b"\n"));
    lines.reverse();
    let back = read(&lines.concat()).expect("the same lines");
    assert_eq!(back.engines.len(), said.engines.len());
    assert_eq!((&back.caches, &back.lora, back.flaws), (&said.caches, &said.lora, said.flaws));
});
