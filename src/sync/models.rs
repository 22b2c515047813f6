//! Models of the small spin lock.

use super::Arc;
use super::model::{check, spawn};
use super::spin::SpinLock;

/// A lock that its last user frees, as the last use of a stream's core frees its lock.
#[derive(Clone, Copy)]
struct Shared(*mut SpinLock<usize>);

// SAFETY: the lock is `Sync`, and freed once, by the user that counts to two.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Shared {
        Shared(Box::into_raw(Box::new(SpinLock::new(0))))
    }

    /// Locks, counts, unlocks; the second user then frees the lock's memory.
    fn use_once(self) {
        // SAFETY: the lock is freed by the second user only, after the first has unlocked.
        let lock = unsafe { &*self.0 };
        let mut count = lock.lock();
        *count += 1;
        let last = *count == 2;
        drop(count);
        if last {
            // SAFETY: the other user's last access was the unlock that this thread's lock has seen.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// One thread at a time, each seeing what the one before it wrote. Two threads: of three, two could
/// spin by turns without end while the third holds the lock, which loom would follow.
#[test]
fn one_thread_at_a_time() {
    for (name, rounds) in [("spin lock, once each", 1), ("spin lock, twice each", 2)] {
        check(name, move || {
            let lock = Arc::new(SpinLock::new(0));
            let add = move |lock: &SpinLock<usize>| {
                for _ in 0..rounds {
                    let mut value = lock.lock();
                    let seen = *value;
                    *value = seen + 1;
                }
            };
            let other = {
                let lock = Arc::clone(&lock);
                spawn(move || add(&lock))
            };
            add(&lock);
            other.join();
            assert_eq!(*lock.lock(), 2 * rounds);
        });
    }
}

/// The unlock is the last touch: whoever finds that it is the last user may free the lock at once.
#[test]
fn the_last_user_frees_the_lock() {
    check("freed spin lock", || {
        let lock = Shared::new();
        let other = spawn(move || lock.use_once());
        lock.use_once();
        other.join();
    });
}
