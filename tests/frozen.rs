//! Random programs with each operation of the device frozen in turn: it executes only when a synchronize
//! needs it, and so after everything that nothing orders after it. Kernels stamp their buffers and
//! expect the stamps of the kernels before them, so that a missing wait is corrupted data; and since an
//! operation overtakes another if and only if nothing orders them, these schedules are all there are.

use streampool::check::{Coverage, Program, frozen};

#[test]
fn no_frozen_operation_corrupts_data() {
    let mut reached = Coverage::default();
    let mut schedules = 0;
    for seed in 0..150 {
        let program = Program::random(seed, 60);
        let mut operation = 0;
        loop {
            // Until the frozen operation is put on the device nothing differs, so that its number is
            // the same in every run; after it, a run may be longer or shorter.
            let run = frozen(&program, operation).unwrap_or_else(|failure| panic!("{failure}"));
            reached += run;
            schedules += 1;
            operation += 1;
            if operation > run.device_operations {
                break;
            }
        }
    }
    assert!(schedules > 4000, "{schedules} schedules");
    assert!(reached.kernels > 2 * schedules, "too few kernels: {reached:?}");
    assert!(
        reached.early_steals > 0 && reached.late_steals > 0 && reached.unions > 0,
        "{reached:?}"
    );
}
