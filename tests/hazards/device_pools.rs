//! S4: pools by device, on machines with one, two and eight devices.

use std::thread;

use streampool::DevicePools;
use streampool::backend::ErrorKind;
use streampool::sim::{Call, FaultPlan, Kernel, SimDevice};

use crate::common::{BLOCK, Stream, launch};
use crate::devices::on_every_machine;

#[test]
fn s4_pools_by_ordinal_are_made_on_first_use_alike_and_each_others_peers() {
    on_every_machine(|setup, number| {
        let devices = SimDevice::several(1, number);
        let growth = setup.growth;
        let pools = DevicePools::configured(devices.clone(), move |builder| {
            builder.growth(growth).limit(2 * BLOCK)
        });
        assert_eq!((pools.len(), pools.made().len()), (number, 0));
        assert!(devices.iter().all(|device| device.counts().driver_calls() == 0));
        // From several threads and in no order; each is made once.
        thread::scope(|scope| {
            for at in (0..number).rev().chain(0..number) {
                let pools = pools.clone();
                scope.spawn(move || pools.pool(at).unwrap());
            }
        });
        assert_eq!(pools.made().len(), number);
        assert!(pools.pool(number).unwrap_err().is_invalid_argument());
        let streams: Vec<Stream> = (0..number)
            .map(|at| pools.pool(at).unwrap().stream(devices[at].create_stream()).unwrap())
            .collect();
        for stream in &streams {
            let x = stream.alloc(BLOCK as usize).unwrap();
            assert!(stream.alloc(2 * BLOCK as usize).unwrap_err().is_over_limit());
            for (device, other) in devices.iter().zip(&streams) {
                x.use_on(other).unwrap();
                let kernel = Kernel::new().reads(x.device_ptr(), BLOCK);
                launch(device, other.raw(), kernel);
            }
        }
        let reports = pools.quiesce().unwrap().finish();
        assert_eq!(reports.len(), number);
        drop(streams);
        pools.close().unwrap();
        devices[0].assert_no_hazards();
        assert!(devices.iter().all(|device| device.memory_in_use() == 0));
        assert!(pools.pool(0).unwrap().stream(devices[0].create_stream()).unwrap_err().is_closed());
    });
}

#[test]
fn s4_pools_of_devices_that_cannot_share_memory_work_by_themselves() {
    on_every_machine(|setup, number| {
        let devices = SimDevice::several(1, number);
        let growth = setup.growth;
        let pools = DevicePools::configured(devices.clone(), move |builder| builder.growth(growth));
        // The first can give access to none; the others can.
        devices[0].inject(FaultPlan::new(Call::AllowPeer).from_then_on());
        let streams: Vec<Stream> = (0..number)
            .map(|at| pools.pool(at).unwrap().stream(devices[at].create_stream()).unwrap())
            .collect();
        let x = streams[0].alloc(BLOCK as usize).unwrap();
        for other in &streams[1..] {
            assert!(x.use_on(other).unwrap_err().is_no_peer_access());
            other.alloc(BLOCK as usize).unwrap().use_on(&streams[0]).unwrap();
        }
        // A device that is lost cannot have a pool, which is no matter of access.
        let lost = DevicePools::new(devices.clone());
        let plan = FaultPlan::new(Call::AllowPeer).kind(ErrorKind::DeviceLost);
        devices[0].clear_faults();
        devices[0].inject(plan);
        assert_eq!(lost.pool(0).is_err(), number > 1);
    });
}
