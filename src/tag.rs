//! What buffers are for, in words: tags, and the innermost one of each thread.
//!
//! A tag is the number of a text that the process keeps once and for ever. How many texts there can be, and
//! how long each, is bounded: a program that makes a new text for every step gets no more memory than that.
//!
//! Only pools that keep a [`history`](crate::PoolBuilder::history) ask for the thread's tag, on the long way
//! that their allocations take anyway.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

use crate::sync::{host, pool_thread_local};

/// What a buffer is for, in words: "activations, layer 3".
///
/// Make it once and keep it; it is a number of 32 bits, and two of the same text are equal. Then say which
/// buffers it is for: all that a thread allocates [`within`](Self::within) a call or until a guard goes
/// ([`enter`](Self::enter)), or one of them ([`Buffer::set_tag`](crate::Buffer::set_tag)).
///
/// Tags are shown by [snapshots](crate::Snapshot), by a [`History`](crate::History) and in the files that
/// both write for PyTorch's memory viewer and for Perfetto. Pools that keep a
/// [`history`](crate::PoolBuilder::history), of however few events, note them; in others they do nothing, and cost their
/// hits nothing.
///
/// ```
/// # use streampool::{StreamPool, Tag, sim::SimDevice};
/// # let device = SimDevice::new(1);
/// let pool = StreamPool::builder(device.clone()).history(1000).build()?;
/// let stream = pool.stream(device.create_stream())?;
/// let weights = Tag::new("weights");
/// let kept = weights.within(|| stream.alloc(4096))?;
/// let scratch = stream.alloc(256)?;
/// assert_eq!(kept.tag(), Some(weights));
/// assert_eq!(scratch.tag(), None);
/// assert_eq!(pool.snapshot().block_at(kept.device_ptr()).unwrap().tag, Some(weights));
/// # Ok::<(), streampool::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(NonZeroU32);

/// How many texts there can be.
const TEXTS_MAX: usize = 1 << 16;

/// The texts of all tags.
static TEXTS: host::Mutex<Texts> = host::Mutex::new(Texts::new(TEXTS_MAX));

impl Tag {
    /// The most bytes that a tag keeps of its text.
    pub const BYTES_MAX: usize = 256;

    /// The tag of a text. Takes a lock of the process and looks the text up: not for every allocation.
    ///
    /// A text is kept for as long as the process lives, once. Of one that is longer than
    /// [`BYTES_MAX`](Self::BYTES_MAX) bytes the beginning is kept. There can be 65 535 of them; every later one
    /// is the same tag, "(more tags than can be kept)". So let a text name a kind of buffers, and no step or
    /// request.
    pub fn new(text: &str) -> Tag {
        lock().tag(text)
    }

    /// Its text.
    pub fn text(self) -> &'static str {
        lock().text(self)
    }

    /// Runs something; what this thread allocates meanwhile, from whatever pool, is for this. Calls nest: the
    /// innermost counts.
    ///
    /// ```
    /// # use streampool::{StreamPool, Tag, sim::SimDevice};
    /// # let device = SimDevice::new(1);
    /// # let pool = StreamPool::builder(device.clone()).history(1000).build()?;
    /// # let stream = pool.stream(device.create_stream())?;
    /// let [layer, attention] = ["layer 3", "layer 3, attention"].map(Tag::new);
    /// let (inner, outer) = layer.within(|| {
    ///     let inner = attention.within(|| stream.alloc(4096));
    ///     (inner, stream.alloc(4096))
    /// });
    /// assert_eq!((inner?.tag(), outer?.tag()), (Some(attention), Some(layer)));
    /// # Ok::<(), streampool::Error>(())
    /// ```
    pub fn within<T>(self, run: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        run()
    }

    /// As [`within`](Self::within), until the guard is dropped: for code that does not fit into a closure.
    /// Guards may go in any order; what counts is the latest of those that are left.
    ///
    /// Not across an `.await`: another task may run on the thread then. The guard cannot be sent to another
    /// thread, which makes such a future of a multi-threaded executor an error.
    ///
    /// ```
    /// # use streampool::{StreamPool, Tag, sim::SimDevice};
    /// # let device = SimDevice::new(1);
    /// # let pool = StreamPool::builder(device.clone()).history(1000).build()?;
    /// # let stream = pool.stream(device.create_stream())?;
    /// let gradients = Tag::new("gradients");
    /// let entered = gradients.enter();        // not `let _ =`, which drops it at once
    /// let buffer = stream.alloc(4096)?;
    /// drop(entered);
    /// assert_eq!(buffer.tag(), Some(gradients));
    /// # Ok::<(), streampool::Error>(())
    /// ```
    #[must_use = "the tag counts until the guard is dropped: for one call use `within`"]
    pub fn enter(self) -> EnteredTag {
        // In a thread-local destructor there may be no tags any more.
        let number = ENTERED.try_with(|entered| entered.borrow_mut().enter(self));
        EnteredTag { number: number.unwrap_or(0), _of_this_thread: PhantomData }
    }

    /// The tag that counts on this thread now.
    pub fn current() -> Option<Tag> {
        INNERMOST.try_with(Cell::get).unwrap_or(None)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tag").field(&self.text()).finish()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Tag {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

/// Texts, each kept once.
#[derive(Debug)]
struct Texts {
    by_text: BTreeMap<&'static str, Tag>,
    /// By the tag's number, from 1 on.
    texts: Vec<&'static str>,
    most: usize,
}

fn lock() -> host::MutexGuard<'static, Texts> {
    // A panic can only be one for want of memory, and leaves a text that no tag names.
    TEXTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Texts {
    const fn new(most: usize) -> Texts {
        Texts { by_text: BTreeMap::new(), texts: Vec::new(), most }
    }

    fn tag(&mut self, text: &str) -> Tag {
        let text = beginning(text);
        if let Some(tag) = self.by_text.get(text) {
            return *tag;
        }
        match self.most - self.texts.len() {
            0 => Tag(number(self.texts.len())),
            1 => self.keep("(more tags than can be kept)"),
            _ => self.keep(String::from(text).leak()),
        }
    }

    fn keep(&mut self, text: &'static str) -> Tag {
        self.texts.push(text);
        let tag = Tag(number(self.texts.len()));
        self.by_text.insert(text, tag);
        tag
    }

    fn text(&self, tag: Tag) -> &'static str {
        self.texts[tag.0.get() as usize - 1]
    }
}

fn number(place: usize) -> NonZeroU32 {
    let number = u32::try_from(place).expect("there are no more than 65 536 texts");
    NonZeroU32::new(number).expect("places are counted from 1 on")
}

/// As much of a text as is kept: whole characters.
fn beginning(text: &str) -> &str {
    let most = Tag::BYTES_MAX.min(text.len());
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// The tags that a thread has entered.
#[derive(Debug)]
struct Entered {
    last: u64,
    tags: Vec<(u64, Tag)>,
}

pool_thread_local! {
    static ENTERED: RefCell<Entered> = RefCell::new(Entered { last: 0, tags: Vec::new() });
    /// The latest of them, where an allocation finds it.
    static INNERMOST: Cell<Option<Tag>> = Cell::new(None);
}

impl Entered {
    fn enter(&mut self, tag: Tag) -> u64 {
        self.last += 1;
        self.tags.push((self.last, tag));
        self.follow();
        self.last
    }

    fn leave(&mut self, number: u64) {
        if let Some(at) = self.tags.iter().rposition(|own| own.0 == number) {
            self.tags.remove(at);
        }
        self.follow();
    }

    fn follow(&self) {
        let _ = INNERMOST.try_with(|innermost| innermost.set(self.tags.last().map(|own| own.1)));
    }
}

/// A tag that counts on this thread until this is dropped. Made by [`Tag::enter`].
#[derive(Debug)]
#[must_use = "the tag counts until this is dropped"]
pub struct EnteredTag {
    number: u64,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for EnteredTag {
    fn drop(&mut self) {
        let _ = ENTERED.try_with(|entered| entered.borrow_mut().leave(self.number));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once() {
        let first = Tag::new("of a_text_is_kept_once");
        let count = lock().texts.len();
        assert_eq!(Tag::new(&String::from("of a_text_is_kept_once")), first);
        assert_eq!(lock().texts.len(), count);
        assert_eq!(first.to_string(), "of a_text_is_kept_once");
        assert_ne!(Tag::new("of a_text_is_kept_once, too"), first);
        assert_eq!(size_of::<Option<Tag>>(), 4);
    }

    #[test]
    fn texts_are_bounded_in_length_and_number() {
        let mut texts = Texts::new(4);
        let long = format!("{}é", "x".repeat(Tag::BYTES_MAX - 1));
        let cut = texts.tag(&long);
        assert_eq!(texts.text(cut), "x".repeat(Tag::BYTES_MAX - 1));
        assert_eq!(texts.tag(&long), cut);
        let fits = "y".repeat(Tag::BYTES_MAX);
        let tag = texts.tag(&fits);
        assert_eq!(texts.text(tag), fits);
        let last = texts.tag("the last");
        let more = texts.tag("one more");
        assert_eq!(texts.text(more), "(more tags than can be kept)");
        assert_eq!(texts.tag("and another"), more);
        assert_eq!((texts.tag("the last"), texts.texts.len()), (last, 4));
    }

    #[test]
    fn the_innermost_counts_and_guards_go_in_any_order() {
        let [a, b] = ["tag a", "tag b"].map(Tag::new);
        assert_eq!(Tag::current(), None);
        let outer = a.enter();
        let inner = b.enter();
        assert_eq!(Tag::current(), Some(b));
        drop(outer);
        assert_eq!(Tag::current(), Some(b));
        drop(inner);
        assert_eq!(Tag::current(), None);
        a.within(|| {
            b.within(|| assert_eq!(Tag::current(), Some(b)));
            assert_eq!(Tag::current(), Some(a));
            std::thread::scope(|threads| {
                threads.spawn(|| assert_eq!(Tag::current(), None));
            });
        });
        let unwound = std::panic::catch_unwind(|| a.within(|| panic!("within")));
        assert!(unwound.is_err());
        assert_eq!(Tag::current(), None);
    }
}
