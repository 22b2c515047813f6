//! What goes wrong with a bare flag, and not with a scope.

use super::common::cli::Outcome;
use super::common::device::{Access, Device, Purpose};
use super::modes::{Mode, Program};
use super::options::{BUFFER_BYTES, Options};

/// Long enough to be under way while the buffers are freed and allocated again, in nanoseconds.
const SLOW_KERNEL_NS: u64 = 50_000_000;
const KERNEL_NS: u64 = 3000;

/// What the program has done to one mode's pool.
pub(crate) struct Shown {
    pub(crate) mode: Mode,
    pub(crate) hazards: Option<u64>,
    pub(crate) first: Option<String>,
}

/// Runs the same program with the flag and with a scope, and tells what the device found.
pub(crate) fn show<D: Device>(
    options: &Options,
    device: impl Fn(Purpose) -> Outcome<D>,
) -> Outcome<String> {
    let mut text = String::from(
        "The program: a layer's buffers are written and the device is synchronized. Then, before they\n\
         are freed, one more kernel reads each of them: work that the synchronize knew nothing of. The\n\
         next layer takes the memory on other streams and writes it.\n",
    );
    for mode in [Mode::Flag, Mode::Scope] {
        let shown = run(options, device(Purpose::Check)?, mode)?;
        text += &format!("\nmode `{}`: ", shown.mode.name());
        text += &match shown.hazards {
            None => "this device cannot tell hazards\n".to_owned(),
            Some(0) => "0 hazards. The scope asked at its end, found the streams busy, and \
                        kept\nthe buffers' ordinary dependencies.\n"
                .to_owned(),
            Some(count) => format!(
                "{count} hazards. Memory was written while the kernels that read it were under \
                 way.\nThe first:\n"
            ),
        };
        for line in shown.first.iter().flat_map(|first| first.lines()) {
            text += &format!("  | {line}\n");
        }
    }
    Ok(text)
}

/// Two layers of the program, with a launch between the synchronize and the frees of the first.
pub(crate) fn run<D: Device>(options: &Options, device: D, mode: Mode) -> Outcome<Shown> {
    let mut program = Program::new(device, mode, options.streams.max(2), BUFFER_BYTES)?;
    program.allocate(options.buffers, 0)?;
    program.work(Access::Write, KERNEL_NS)?;
    program.clear_with(&|program| program.work(Access::Read, SLOW_KERNEL_NS))?;
    program.give_back();
    program.allocate(options.buffers, 1)?;
    program.work(Access::Write, KERNEL_NS)?;
    program.device.synchronize()?;
    program.give_back();
    program.clear()?;
    let (hazards, first) = (program.device.hazards(), program.device.first_hazard());
    Ok(Shown { mode, hazards, first })
}
