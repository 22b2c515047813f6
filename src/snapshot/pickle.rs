//! Writes Python's pickle format, protocol 2: as much of it as plain data needs.
//!
//! Only opcodes that PyTorch's memory viewer reads as well, which has a reader of its own: it spreads what a
//! list is extended by over the arguments of one call, so that a long list is written in parts, and
//! it takes an integer of more than eight bytes for a `BigInt`.

/// How many elements a list is extended by at once, as Python's own pickler does it.
const BATCH: usize = 1000;
/// How many words can be kept to be named by one byte.
const WORDS: usize = 256;

const PROTO: u8 = 0x80;
const MARK: u8 = b'(';
const STOP: u8 = b'.';
const NONE: u8 = b'N';
const TRUE: u8 = 0x88;
const FALSE: u8 = 0x89;
const INT: u8 = b'J';
const INT1: u8 = b'K';
const INT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const UNICODE: u8 = b'X';
const PUT: u8 = b'q';
const GET: u8 = b'h';
const TUPLE: u8 = b't';
const EMPTY_LIST: u8 = b']';
const APPENDS: u8 = b'e';
const EMPTY_DICT: u8 = b'}';
const SET_ITEMS: u8 = b'u';

/// A pickle that is being written. Each call writes one value, or begins or ends one that holds others.
#[derive(Debug)]
pub(crate) struct Pickler {
    bytes: Vec<u8>,
    /// What can be named by one byte: its place here.
    words: Vec<&'static str>,
}

impl Pickler {
    pub(crate) fn new() -> Pickler {
        Pickler { bytes: vec![PROTO, 2], words: Vec::new() }
    }

    /// The pickle, whole: the one value that was written.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(STOP);
        self.bytes
    }

    pub(crate) fn none(&mut self) {
        self.bytes.push(NONE);
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.bytes.push(if value { TRUE } else { FALSE });
    }

    pub(crate) fn int(&mut self, value: impl Into<i128>) {
        let value = value.into();
        if let Ok(byte) = u8::try_from(value) {
            self.bytes.extend([INT1, byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.bytes.push(INT2);
            self.bytes.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(value) {
            self.bytes.push(INT);
            self.bytes.extend(int.to_le_bytes());
        } else {
            // Two's complement, as short as can be: the last byte has the sign.
            let sign_bits = if value < 0 { value.leading_ones() } else { value.leading_zeros() };
            let length = (i128::BITS - sign_bits) / 8 + 1;
            self.bytes.extend([LONG1, length as u8]);
            self.bytes.extend(&value.to_le_bytes()[..length as usize]);
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        let length = u32::try_from(text.len()).expect("a text is shorter than 4 GiB");
        self.bytes.push(UNICODE);
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    /// A text that comes again and again: from the second time on it is two bytes.
    pub(crate) fn word(&mut self, word: &'static str) {
        if let Some(at) = self.words.iter().position(|own| *own == word) {
            self.bytes.extend([GET, at as u8]);
            return;
        }
        self.text(word);
        if self.words.len() < WORDS {
            self.bytes.extend([PUT, self.words.len() as u8]);
            self.words.push(word);
        }
    }

    /// A dictionary: `write` writes a [`word`](Self::word) and a value in turn.
    pub(crate) fn dict(&mut self, write: impl FnOnce(&mut Pickler)) {
        self.bytes.extend([EMPTY_DICT, MARK]);
        write(self);
        self.bytes.push(SET_ITEMS);
    }

    /// A tuple of the values that `write` writes.
    pub(crate) fn tuple(&mut self, write: impl FnOnce(&mut Pickler)) {
        self.bytes.push(MARK);
        write(self);
        self.bytes.push(TUPLE);
    }

    /// A list: `write` writes one value for each element.
    pub(crate) fn list<T>(
        &mut self,
        elements: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Pickler, T),
    ) {
        self.bytes.push(EMPTY_LIST);
        let mut batched = 0;
        for element in elements {
            if batched == BATCH {
                self.bytes.push(APPENDS);
                batched = 0;
            }
            if batched == 0 {
                self.bytes.push(MARK);
            }
            write(self, element);
            batched += 1;
        }
        if batched > 0 {
            self.bytes.push(APPENDS);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pickled(write: impl FnOnce(&mut Pickler)) -> Vec<u8> {
        let mut pickler = Pickler::new();
        write(&mut pickler);
        pickler.finish()
    }

    #[test]
    fn each_kind_of_value_has_its_bytes() {
        let int = |value: i128| pickled(|pickler| pickler.int(value));
        assert_eq!(int(0), b"\x80\x02K\x00.");
        assert_eq!(int(255), b"\x80\x02K\xff.");
        assert_eq!(int(256), b"\x80\x02M\x00\x01.");
        assert_eq!(int(0xffff), b"\x80\x02M\xff\xff.");
        assert_eq!(int(0x1_0000), b"\x80\x02J\x00\x00\x01\x00.");
        assert_eq!(int(-1), b"\x80\x02J\xff\xff\xff\xff.");
        assert_eq!(int(0x7fff_ffff), b"\x80\x02J\xff\xff\xff\x7f.");
        // The sign needs a bit: five bytes, the last one empty.
        assert_eq!(int(0x8000_0000), b"\x80\x02\x8a\x05\x00\x00\x00\x80\x00.");
        assert_eq!(int(-0x8000_0001), b"\x80\x02\x8a\x05\xff\xff\xff\x7f\xff.");
        assert_eq!(int(-0x80_0000_0000), b"\x80\x02\x8a\x05\x00\x00\x00\x00\x80.");
        let most = b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.";
        assert_eq!(int(i128::from(u64::MAX)), most);
        assert_eq!(pickled(|own| own.text("h\u{e9}")), b"\x80\x02X\x03\0\0\0h\xc3\xa9.");
        assert_eq!(pickled(Pickler::none), b"\x80\x02N.");
        assert_eq!(pickled(|own| own.bool(true)), b"\x80\x02\x88.");
        assert_eq!(pickled(|own| own.bool(false)), b"\x80\x02\x89.");
    }

    #[test]
    fn a_word_is_written_once() {
        let twice = pickled(|own| own.list([(), ()], |own, ()| own.word("ab")));
        assert_eq!(twice, b"\x80\x02](X\x02\0\0\0abq\0h\0e.");
    }

    #[test]
    fn what_holds_others_is_marked() {
        let nested = pickled(|own| {
            own.dict(|own| {
                own.word("a");
                own.tuple(|own| {
                    own.int(1);
                    own.int(2);
                });
            });
        });
        assert_eq!(nested, b"\x80\x02}(X\x01\0\0\0aq\0(K\x01K\x02tu.");
        assert_eq!(pickled(|own| own.list([0; 0], Pickler::int)), b"\x80\x02].");
    }

    #[test]
    fn a_long_list_is_extended_in_parts() {
        let long = pickled(|own| own.list(0..2001, |own, _| own.none()));
        let parts: Vec<usize> = long[3..].split(|byte| *byte == b'e').map(<[u8]>::len).collect();
        // Each with its mark; at the end the stop.
        assert_eq!(parts, [1001, 1001, 2, 1]);
    }
}
