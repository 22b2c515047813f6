//! S4: pools by device, on machines with one, two and eight devices.

use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

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

#[test]
fn s4_s1_a_closed_pools_stream_leaves_when_no_buffer_names_it_any_more() {
    on_every_machine(|setup, number| {
        let devices = SimDevice::several(1, number);
        let growth = setup.growth;
        let pools = DevicePools::configured(devices.clone(), move |builder| builder.growth(growth));
        let [first, .., last] = &devices[..] else { return };
        let home = pools.pool(0).unwrap().stream(first.create_stream()).unwrap();
        let far = pools.pool(number - 1).unwrap();
        let [c, d] = std::array::from_fn(|_| far.stream(last.create_stream()).unwrap());
        let x = home.alloc(BLOCK as usize).unwrap();
        x.use_on(&c).unwrap();
        launch(last, c.raw(), Kernel::new().writes(x.device_ptr(), BLOCK));
        drop(c);
        far.close().unwrap();
        let live = || (last.live_streams(), last.live_events());
        assert_eq!(live().0, 2, "one is named, and one has a handle");
        drop(x);
        // Any pool's call lets it go. Another test's thread may have the pool in hand.
        let becomes = |wanted| {
            (0..2000).any(|_| {
                pools.pool(0).unwrap().reserve(0).unwrap();
                thread::sleep(Duration::from_millis(u64::from(live() != wanted)));
                live() == wanted
            })
        };
        assert!(becomes((1, 0)), "a closed pool keeps a stream: {:?}", live());
        // Nor does it keep one whose handle has gone since, nor an event.
        drop(d);
        assert!(becomes((0, 0)), "a closed pool keeps a stream: {:?}", live());
        pools.close().unwrap();
        first.assert_no_hazards();
    });
}

#[test]
fn s4_options_that_ask_for_a_pool_are_told_so() {
    on_every_machine(|setup, number| {
        let ((send, receive), (end, ended)) = (channel(), channel());
        // On a thread of its own: what waits for itself would never end.
        thread::spawn(move || {
            let devices = SimDevice::several(1, number);
            let growth = setup.growth;
            let own: Arc<OnceLock<DevicePools<SimDevice>>> = Arc::default();
            let inside = Arc::clone(&own);
            let pools = DevicePools::configured(devices, move |builder| {
                let pools = inside.get().unwrap();
                // Those that there are can be had.
                assert!(pools.made().is_empty() || pools.pool(0).is_ok());
                let (last, none) = (pools.pool(number - 1), pools.pool(number));
                assert!(none.unwrap_err().is_invalid_argument());
                send.send(last.map(drop)).unwrap();
                builder.growth(growth)
            });
            assert!(own.set(pools.clone()).is_ok());
            assert!(pools.pool(0).is_ok());
            assert!(pools.pool(number - 1).is_ok());
            end.send(()).unwrap();
        });
        let answer = receive.recv_timeout(Duration::from_secs(10)).expect("it waits for itself");
        let error = answer.unwrap_err();
        assert!(error.is_invalid_argument(), "{error}");
        ended.recv_timeout(Duration::from_secs(10)).expect("it panics, or waits for itself");
    });
}
