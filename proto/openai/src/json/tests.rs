use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn check(bytes: &[u8]) -> Step<()> {
    let mut scanner = Scanner::new(bytes);
    scanner.check_encoding()?;
    scanner.value()?;
    scanner.end()
}

fn flaw(bytes: &[u8]) -> Option<(Flaw, usize)> {
    check(bytes).err().map(|error| (error.flaw, error.at))
}

#[test]
fn what_python_accepts_is_accepted() {
    for text in [
        "0",
        "-0",
        "1.5e-7",
        "1E+2",
        "NaN",
        "Infinity",
        "-Infinity",
        "[NaN,1]",
        "true",
        "false",
        "null",
        "\"\"",
        " [ ] ",
        "{}",
        "{\"a\":{\"b\":[1,2,{}]},\"a\":3}",
        "\"\\ud800\"",
        "\"\\uD83D\\uDE00\"",
        "\"\u{7f}é😀\"",
        "\r\n\t {\"\\u0061\" : \"\\\"\\\\\\/\\b\\f\\n\\r\\t\"} \n",
    ] {
        assert_eq!(flaw(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn what_python_refuses_is_refused_and_located() {
    for (text, expected, at) in [
        ("", Flaw::End, 0),
        ("  ", Flaw::End, 2),
        ("[1,]", Flaw::Value, 3),
        ("[,1]", Flaw::Value, 1),
        ("[1 2]", Flaw::Comma, 3),
        ("[1", Flaw::End, 2),
        ("{\"a\":1,}", Flaw::Key, 7),
        ("{a:1}", Flaw::Key, 1),
        ("{'a':1}", Flaw::Key, 1),
        ("{\"a\" 1}", Flaw::Colon, 5),
        ("{\"a\":}", Flaw::Value, 5),
        ("{\"a\":1", Flaw::End, 6),
        ("{\"a\":1]", Flaw::Comma, 6),
        ("01", Flaw::Trailing, 1),
        ("1.", Flaw::End, 2),
        ("[1.]", Flaw::Number, 3),
        ("-", Flaw::End, 1),
        ("[-a]", Flaw::Number, 2),
        ("-NaN", Flaw::Number, 1),
        ("+1", Flaw::Value, 0),
        (".5", Flaw::Value, 0),
        ("nul", Flaw::Value, 0),
        ("True", Flaw::Value, 0),
        ("nan", Flaw::Value, 0),
        ("{} x", Flaw::Trailing, 3),
        ("\"a\nb\"", Flaw::Control, 2),
        ("\"\u{0}\"", Flaw::Control, 1),
        ("\"\\x41\"", Flaw::Escape, 2),
        ("\"\\u00g0\"", Flaw::Escape, 5),
        ("\"\\", Flaw::End, 2),
        ("\"abc", Flaw::End, 4),
        ("// a\n1", Flaw::Value, 0),
        ("\u{a0}1", Flaw::Value, 0),
    ] {
        let expected = if text == "\"\u{0}\"" { (Flaw::Encoding, 0) } else { (expected, at) };
        assert_eq!(flaw(text.as_bytes()), Some(expected), "{text:?}");
    }
    assert_eq!(flaw(b"[\"a\xff\"]"), Some((Flaw::Utf8, 3)));
    assert_eq!(flaw(b"[\"\xed\xa0\x80\"]"), Some((Flaw::Utf8, 2)), "an encoded surrogate");
    assert_eq!(flaw(b"[\"\xc3\"]"), Some((Flaw::Utf8, 2)));
    for control in 0..0x20_u8 {
        assert_eq!(flaw(&[b'"', b'a', control, b'"']), Some((Flaw::Control, 2)), "{control}");
    }
    assert_eq!(flaw(b"[1\xff]"), Some((Flaw::Comma, 2)));
}

#[test]
fn other_encodings_are_named() {
    for bytes in
        [&b"\xef\xbb\xbf{}"[..], b"\xff\xfe{\0}\0", b"\xfe\xff\0{\0}", b"{\0}\0", b"\0{\0}", b"\0\0\0{"]
    {
        assert_eq!(flaw(bytes), Some((Flaw::Encoding, 0)), "{bytes:?}");
    }
    assert!(JsonError { flaw: Flaw::Encoding, at: 0 }.to_string().contains("byte order mark"));
}

#[test]
fn nesting_ends_at_the_limit() {
    for (open, inner, close) in [("[", "", "]"), ("{\"a\":", "1", "}")] {
        let nested = |depth: usize| format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
        assert_eq!(flaw(nested(NESTING_MAX).as_bytes()), None);
        let (flaw, _) = flaw(nested(NESTING_MAX + 1).as_bytes()).unwrap();
        assert_eq!(flaw, Flaw::Nesting);
    }
    assert_eq!(flaw("[".repeat(1 << 20).as_bytes()).unwrap().0, Flaw::Nesting);
}

fn text(json: &str) -> Text<'_> {
    Scanner::new(json.as_bytes()).string().unwrap()
}

#[test]
fn escapes_are_read_as_python_reads_them() {
    assert!(text("\"mod\\u0065l\"").is("model") && text("\"\\u006dodel\"").is("model"));
    assert!(!text("\"mod\\u0045l\"").is("model") && !text("\"model \"").is("model"));
    assert_eq!(text("\"\\ud83d\\ude00-\\uD83D\\uDE00\"").decode(), "😀-😀");
    assert_eq!(text("\"a\\\"\\\\\\/\\b\\f\\n\\r\\té\"").decode(), "a\"\\/\u{8}\u{c}\n\r\té");
    for lone in ["\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\ud800\"", "\"\\ud800x\"", "\"\\ude00\\ud83d\""] {
        assert!(text(lone).has_lone_surrogate(), "{lone}");
        assert!(text(lone).decode().contains('\u{fffd}'));
        assert!(!text(lone).is(&text(lone).decode()), "not the replacement character itself");
    }
    assert!(!text("\"\\ud83d\\ude00\\\\ud800\"").has_lone_surrogate());
    assert_eq!(text("\"abc\\n\"").range(), 1..6);
}

#[test]
fn integers_saturate_and_all_else_is_unknown() {
    assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
    assert_eq!(unsigned(b"99999999999999999999999"), Some(u64::MAX));
    for other in ["-1", "1.0", "1e3", "NaN"] {
        assert_eq!(unsigned(other.as_bytes()), None);
    }
}

pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[\"\\\\\u{0}-\u{1f}é😀]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// What serde_json refuses and Python accepts, or the other way round. Only these may differ.
fn may_differ(bytes: &[u8]) -> bool {
    let has = |part: &[u8]| memchr::memmem::find(bytes, part).is_some();
    has(b"NaN")
        || has(b"Infinity")
        || has(b"\\u")
        || bytes.iter().take(2).any(|&b| b == 0)
        || has(b"e")
        || has(b"E")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn valid_json_is_accepted_and_strings_are_read_alike(value in any_json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        prop_assert_eq!(flaw(text.as_bytes()), None);
        if let Value::String(wanted) = &value {
            prop_assert_eq!(&*Scanner::new(text.as_bytes()).string().unwrap().decode(), wanted.as_str());
        }
    }

    #[test]
    fn damaged_json_is_judged_as_serde_json_judges_it(
        value in any_json(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        how in 0..3,
    ) {
        let mut bytes = serde_json::to_vec(&value).unwrap();
        let at = at.index(bytes.len());
        match how {
            0 => bytes[at] = byte,
            1 => bytes.insert(at, byte),
            _ => bytes.truncate(at),
        }
        if !may_differ(&bytes) {
            let wanted = serde_json::from_slice::<Value>(&bytes).is_ok();
            prop_assert_eq!(check(&bytes).is_ok(), wanted, "{:?}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn small_alphabets_are_judged_alike(text in "[\\[\\]{}:,\"a1.e\\-\\\\n \t]{0,10}") {
        let wanted = serde_json::from_str::<Value>(&text).is_ok();
        // A float beyond f64 is an error to serde_json only.
        if !text.contains('e') || wanted {
            prop_assert_eq!(check(text.as_bytes()).is_ok(), wanted, "{}", text);
        }
    }

    #[test]
    fn written_strings_are_read_back(text in ".{0,30}", wild in prop::collection::vec(any::<char>(), 0..10)) {
        for text in [text, wild.into_iter().collect()] {
            let mut out = String::new();
            push_json_string(&mut out, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text.clone());
            prop_assert_eq!(&*Scanner::new(out.as_bytes()).string().unwrap().decode(), text.as_str());
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = check(&bytes);
    }
}

#[test]
fn a_plain_run_ends_at_the_first_byte_that_may_not_be_in_it() {
    // Every byte at every place, with every other kind of end behind it.
    for byte in 0..=255_u8 {
        for at in 0..20 {
            for (behind, next) in [(1, b'"'), (2, b'\\'), (1, 0x1f), (9, 0)] {
                let mut bytes = vec![b'a'; 40];
                bytes[at] = byte;
                bytes[at + behind] = next;
                let naive = bytes.iter().position(|b| *b < 0x20 || matches!(b, b'"' | b'\\'));
                assert_eq!(Some(text::plain_length(&bytes)), naive, "{byte} at {at}");
            }
        }
    }
    assert_eq!(text::plain_length(b""), 0);
    assert_eq!(text::plain_length(b"abc"), 3);
    assert_eq!(text::plain_length("1234567é".as_bytes()), 9);
}

#[test]
fn a_long_text_is_judged_as_a_short_one() {
    let texts: [&[u8]; 6] =
        [b"[\"\xff\"]", b"[\"a\", \"\xc3\"]", b"[\"\xc3\xa9\"]", b"[\"\x01\xff\"]", b"[\"\xff", b"\xff"];
    for text in texts {
        let read = |mut scanner: Scanner<'_>| scanner.value().and_then(|_| scanner.end());
        assert_eq!(read(Scanner::long(text)), read(Scanner::new(text)), "{text:?}");
    }
}
