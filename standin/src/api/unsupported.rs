//! Functions that cudarc's driver module can call and the stand-in has no answer to. They are here so
//! that the call is logged and fails, where a missing symbol would be a panic.

use crate::call::call;
use crate::code::Code;

macro_rules! unsupported {
    ($($name:ident)*) => {$(
        /// Takes no parameters: under the C calling conventions of Linux a callee may ignore those
        /// that its caller passes.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> u32 {
            call(stringify!($name)).run(|_| Err(Code::NOT_SUPPORTED))
        }
    )*};
}

unsupported! {
    cuCtxGetCacheConfig cuCtxGetLimit cuCtxSetCacheConfig cuCtxSetLimit
    cuDestroyExternalMemory
    cuExternalMemoryGetMappedBuffer cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig
    cuImportExternalMemory cuMemAdvise_v2 cuMemAllocFromPoolAsync cuMemAllocManaged
    cuMemPoolTrimTo
    cuMemPrefetchAsync_v2 cuModuleGetGlobal_v2 cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
    cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags
    cuOccupancyMaxPotentialClusterSize cuProfilerStart cuProfilerStop cuStreamAttachMemAsync
}
