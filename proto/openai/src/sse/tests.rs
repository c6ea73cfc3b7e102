use super::*;

fn pieces(chunks: &[&[u8]]) -> Vec<(Vec<u8>, char)> {
    let mut framer = Framer::default();
    let mut out = Vec::new();
    let mut sink = |piece: Piece<'_>| match piece {
        Piece::Event { raw, .. } => out.push((raw.to_vec(), 'e')),
        Piece::Long { raw, .. } => out.push((raw.to_vec(), 'l')),
        Piece::Tail => out.push((b"\n".to_vec(), 't')),
    };
    for chunk in chunks {
        framer.push(chunk, &mut sink);
    }
    framer.finish(&mut sink);
    out
}

#[test]
fn events_end_at_empty_lines_of_any_kind() {
    let event = |raw: &str| (raw.as_bytes().to_vec(), 'e');
    let tail = || (b"\n".to_vec(), 't');
    assert_eq!(pieces(&[b"data: a\n\ndata: b\n\n"]), [event("data: a\n\n"), event("data: b\n\n")]);
    assert_eq!(pieces(&[b"a\r\rb\r\n\r\nc\n\r"]), [event("a\r\r"), event("b\r\n\r"), tail(), event("c\n\r")]);
    assert_eq!(pieces(&[b"a\r\n\r", b"\nb"]), [event("a\r\n\r"), tail(), event("b")]);
    assert_eq!(pieces(&[b"a\r", b"\n", b"\r\n"]), [event("a\r\n\r"), tail()]);
    assert_eq!(pieces(&[b"\n\n", b": c\n", b"\n"]), [event("\n"), event("\n"), event(": c\n\n")]);
    assert_eq!(pieces(&[b""]), []);
}

#[test]
fn fields_are_read_as_the_standard_says() {
    let read = |raw: &'static str, first| {
        let event = Event::read(raw.as_bytes(), first);
        let data = event.data.map(|data| String::from_utf8(data.into_owned()).unwrap());
        (String::from_utf8(event.name.to_vec()).unwrap(), data, event.understood)
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(read("data: a\n\n", false), (String::new(), some("a"), true));
    assert_eq!(read("data:  a\r\n\r\n", false), (String::new(), some(" a"), true));
    assert_eq!(read("event: e\rdata:1\rdata\rdata: 3\r\r", false), ("e".into(), some("1\n\n3"), true));
    assert_eq!(read("\u{feff}data:a\n\n", true), (String::new(), some("a"), true));
    assert_eq!(read("\u{feff}data:a\n\n", false), (String::new(), None, false));
    assert_eq!(read(": data: x\n\n", false), (String::new(), None, true));
    assert_eq!(read("datax: x\n data: y\n{}\n\n", false), (String::new(), None, false));
}

#[test]
fn positions_in_joined_data_lead_back_to_the_raw_bytes() {
    let raw = "event: e\r\ndata: abc\r\ndata:def\ndata\ndata: g\n\n".as_bytes();
    let event = Event::read(raw, false);
    let data = event.data.clone().unwrap();
    assert_eq!(&*data, b"abc\ndef\n\ng");
    for (at, byte) in data.iter().enumerate().filter(|(_, byte)| **byte != b'\n') {
        assert_eq!(raw[event.raw_at(at)], *byte, "{at}");
    }
}

#[test]
fn a_long_event_is_handed_on_raw_and_the_next_one_is_read() {
    let mut body = vec![b'x'; EVENT_BYTES_MAX + 5];
    body.extend_from_slice(b"\n\ndata: a\n\n");
    for length in [body.len(), 4096, EVENT_BYTES_MAX] {
        let chunks: Vec<_> = body.chunks(length).collect();
        let pieces = pieces(&chunks);
        assert_eq!(pieces.iter().flat_map(|(raw, _)| raw.clone()).collect::<Vec<_>>(), body);
        assert_eq!(pieces.last().unwrap(), &(b"data: a\n\n".to_vec(), 'e'));
        assert!(pieces.iter().rev().skip(1).all(|(_, kind)| *kind == 'l'));
    }
}
