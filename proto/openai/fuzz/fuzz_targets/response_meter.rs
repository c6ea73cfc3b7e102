//! Any response in any chunks: no panic, and the cuts change neither tally nor bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto_openai::{Api, BodyKind, Plan, ResponseMeter, Strip, Tally};

fn run<'a>(plan: Plan, kind: BodyKind, chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, Tally) {
    let mut meter = ResponseMeter::new(plan, kind);
    let mut client = Vec::new();
    for chunk in chunks {
        let before = client.len();
        if !meter.push(chunk, &mut client).edited {
            assert_eq!(client.len(), before);
            client.extend_from_slice(chunk);
        }
    }
    meter.finish(&mut client);
    (client, meter.tally())
}

// The first byte chooses plan and chunk length; the rest is the response, so that captures serve as seeds.
fuzz_target!(|input: &[u8]| {
    let Some((&choice, body)) = input.split_first() else { return };
    let choice = usize::from(choice);
    let kind = if choice & 1 == 0 { BodyKind::Sse } else { BodyKind::Json };
    let strip = [Strip::Nothing, Strip::Continuous, Strip::All][(choice >> 1) % 3];
    let api = [Api::ChatCompletions, Api::Completions, Api::Responses, Api::Messages][(choice >> 3) % 4];
    let plan = Plan { api, stream: true, strip };
    let whole = run(plan, kind, std::iter::once(body));
    if strip == Strip::Nothing {
        assert_eq!(whole.0, body);
    }
    for length in [1, 1 + (choice >> 5) * 13] {
        assert_eq!(run(plan, kind, body.chunks(length)), whole);
    }
});
