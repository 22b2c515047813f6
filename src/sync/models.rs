//! Models of the small spin lock.

use super::model::{Thread, check, spawn};
use super::spin::SpinLock;

/// A lock that its last user frees, as the last use of a stream's core frees its lock.
#[derive(Clone, Copy)]
struct Shared(*mut SpinLock<usize>);

// SAFETY: the lock is `Sync`, and freed once, by the user that counts to the last.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Shared {
        Shared(Box::into_raw(Box::new(SpinLock::new(0))))
    }

    /// Locks, counts, unlocks; the last of `users` then frees the lock's memory.
    fn use_once(self, users: usize) {
        // SAFETY: the lock is freed by the last user only, after all others have unlocked.
        let lock = unsafe { &*self.0 };
        let mut count = lock.lock();
        *count += 1;
        let last = *count == users;
        drop(count);
        if last {
            // SAFETY: every other user's last access was the unlock that this thread's lock has seen.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

/// One thread at a time, each seeing what the one before it wrote.
#[test]
fn one_thread_at_a_time() {
    for threads in [2, 3] {
        check(&format!("spin lock, {threads} threads"), move || {
            let lock = std::sync::Arc::new(SpinLock::new(0));
            let add = |lock: &SpinLock<usize>| {
                let mut value = lock.lock();
                let seen = *value;
                *value = seen + 1;
            };
            let others: Vec<Thread<()>> = (1..threads)
                .map(|_| {
                    let lock = std::sync::Arc::clone(&lock);
                    spawn(move || add(&lock))
                })
                .collect();
            add(&lock);
            others.into_iter().for_each(Thread::join);
            assert_eq!(*lock.lock(), threads);
        });
    }
}

/// The unlock is the last touch: whoever finds that it is the last user may free the lock at once.
#[test]
fn the_last_user_frees_the_lock() {
    for users in [2, 3] {
        check(&format!("freed spin lock, {users} users"), move || {
            let lock = Shared::new();
            let others: Vec<Thread<()>> =
                (1..users).map(|_| spawn(move || lock.use_once(users))).collect();
            lock.use_once(users);
            others.into_iter().for_each(Thread::join);
        });
    }
}
