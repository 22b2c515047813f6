//! Which stream is about to use a slice, and what that asks of the pool.

use cudarc::driver::CudaStream;

use crate::Buffer;
use crate::backend::cuda::transfers::context_id;
use crate::buffer::ANY_OTHER;
use crate::cuda::CudaBackend;
use crate::error::{Error, Reason};
use crate::pool::{Access, User};

/// The address that stands for "this operation must not run".
static NOWHERE: u64 = 0;

/// The legacy stream's two handles: null, and `CU_STREAM_LEGACY`.
const LEGACY: [usize; 2] = [0, 1];

/// A use through a shared borrow of the whole buffer: no exclusive one can be alive.
pub(super) const READ: Access = Access { writes: false, alone: true };
/// A use through the exclusive borrow of the whole buffer.
pub(super) const WRITE: Access = Access { writes: true, alone: true };
/// The same through a view that may have exclusive neighbours.
pub(super) const READ_PART: Access = Access { writes: false, alone: false };
pub(super) const WRITE_PART: Access = Access { writes: true, alone: false };

fn is_same(left: &CudaStream, right: &CudaStream) -> bool {
    left.cu_stream() == right.cu_stream() && left.context().cu_ctx() == right.context().cu_ctx()
}

/// The address for an operation on `stream` that is submitted next: `address`, once the stream comes
/// after every earlier use, or else 0.
#[inline]
pub(super) fn address_on(
    buffer: &Buffer<CudaBackend>,
    address: u64,
    access: Access,
    stream: &CudaStream,
) -> u64 {
    if !buffer.has_others(ANY_OTHER) && is_same(buffer.home.stream(), stream) {
        return address;
    }
    if settled(buffer, order_on(buffer, access, stream)) { address } else { NOWHERE }
}

/// The place of the address for a launch on the home stream: `address`, once home comes after every
/// earlier use, or else that of a 0.
#[inline]
pub(super) fn address_at_home<'a>(
    buffer: &Buffer<CudaBackend>,
    address: &'a u64,
    access: Access,
) -> &'a u64 {
    if !buffer.has_others(ANY_OTHER) || settled(buffer, order_at_home(buffer, access)) {
        address
    } else {
        &NOWHERE
    }
}

/// Has the home stream come after every earlier use.
pub(super) fn order_at_home(buffer: &Buffer<CudaBackend>, access: Access) -> Result<(), Error> {
    if !buffer.has_others(ANY_OTHER) {
        return Ok(());
    }
    buffer.home.pool.order_use(buffer, &User::Known(&buffer.home), access)
}

#[cold]
fn order_on(
    buffer: &Buffer<CudaBackend>,
    access: Access,
    stream: &CudaStream,
) -> Result<(), Error> {
    let pool = &buffer.home.pool;
    if buffer.capacity() == 0 {
        return Ok(());
    }
    if is_same(buffer.home.stream(), stream) {
        return order_at_home(buffer, access);
    }
    let context = context_id(stream.context());
    let handle = stream.cu_stream().addr();
    if let Some(pin) = pool.find_stream(context, handle as u64) {
        return pool.order_use(buffer, &User::Known(&pin.core), access);
    }
    if context != pool.driver.context_id() {
        return Err(Error::new(Reason::ForeignContext));
    }
    if LEGACY.contains(&handle) {
        // The one stream that needs nobody to keep it alive.
        let legacy = stream.context().default_stream();
        let legacy = buffer.stream().pool().stream(legacy)?;
        return pool.order_use(buffer, &User::Known(&legacy.core), access);
    }
    pool.order_use(buffer, &User::Stranger, access)
}

/// Whether the use may be submitted. An error is kept for `take_error`.
fn settled(buffer: &Buffer<CudaBackend>, ordered: Result<(), Error>) -> bool {
    match ordered {
        Ok(()) => true,
        Err(error) => {
            buffer.home.pool.driver.keep_error(error);
            false
        }
    }
}
