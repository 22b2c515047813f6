//! What was recorded on one device, made anew on a simulated one, whose race detector judges it.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use streampool::backend::Backend;
use streampool::sim::{
    Hazard, Kernel, Schedule, SimConfig, SimDevice, SimError, SimEvent, SimGranule, SimStream,
};

use crate::recorder::Entry;

/// The hazards of a trace. With none, every call must succeed as it did when it was recorded; after one the
/// device may be lost, and then the trace ends there.
pub(crate) fn replay(entries: &[Entry], granularity: Option<u64>) -> Vec<Hazard> {
    // Nothing executes before the host is said to have seen it finish.
    let config = SimConfig { granularity, schedule: Schedule::Lazy, ..SimConfig::default() };
    let mut replay = Replay {
        device: SimDevice::new(config),
        streams: HashMap::new(),
        events: HashMap::new(),
        synchronizes: HashMap::new(),
        granules: HashMap::new(),
        places: BTreeMap::new(),
    };
    for (at, entry) in entries.iter().enumerate() {
        if let Err(error) = replay.step(*entry) {
            let hazards = replay.device.take_hazards();
            assert!(!hazards.is_empty(), "entry {at}, {entry:?}, fails: {error}");
            return hazards;
        }
    }
    replay.device.run();
    replay.device.take_hazards()
}

/// What one record of an event stands for. An event that is recorded anew leaves those alone that have
/// begun to wait for what it stood for before.
struct Recorded {
    device: SimDevice,
    event: Option<SimEvent>,
}

impl Recorded {
    fn event(&self) -> &SimEvent {
        self.event.as_ref().expect("only the drop takes it")
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.event.take().into_iter().for_each(|event| self.device.destroy_event(event));
    }
}

struct Replay {
    device: SimDevice,
    streams: HashMap<u64, SimStream>,
    /// What each event stands for now.
    events: HashMap<u64, Rc<Recorded>>,
    /// What the synchronizes that have begun wait for.
    synchronizes: HashMap<u64, Option<Rc<Recorded>>>,
    granules: HashMap<u64, SimGranule>,
    /// Segments and ranges: where each was, and its size and address here.
    places: BTreeMap<u64, (u64, u64)>,
}

impl Replay {
    fn step(&mut self, entry: Entry) -> Result<(), SimError> {
        match entry {
            Entry::StreamMade { stream } => {
                self.streams.insert(stream, self.device.create_stream());
                Ok(())
            }
            Entry::StreamGone { stream } => {
                self.streams.remove(&stream);
                Ok(())
            }
            Entry::EventGone { event } => {
                self.events.remove(&event);
                Ok(())
            }
            Entry::Record { event, stream } => {
                let recorded =
                    self.record(|device, own| device.record(own, &self.streams[&stream]));
                self.events.insert(event, recorded?);
                Ok(())
            }
            Entry::RecordContext { event } => {
                let recorded = self.record(|device, own| device.record_context(own).map(drop))?;
                self.events.insert(event, recorded);
                Ok(())
            }
            Entry::Wait { stream, event } => match self.events.get(&event) {
                Some(recorded) => self.device.wait(&self.streams[&stream], recorded.event()),
                None => Ok(()),
            },
            Entry::Finished { event } => self.sees_finished(self.events.get(&event)),
            Entry::SynchronizeBegins { number, event } => {
                let covered = match event {
                    Some(event) => self.events.get(&event).cloned(),
                    None => Some(self.record(|device, own| device.record_context(own).map(drop))?),
                };
                self.synchronizes.insert(number, covered);
                Ok(())
            }
            Entry::SynchronizeEnds { number } => {
                let covered = self.synchronizes.remove(&number).expect("it has begun");
                self.sees_finished(covered.as_ref())
            }
            Entry::Busy { stream, ns } => self.launch(stream, Kernel::new().taking(ns)),
            Entry::Stamp { stream, address, bytes, stamp, ns } => {
                let kernel = Kernel::new().writes(self.here(address), bytes).stamp(stamp);
                self.launch(stream, kernel.taking(ns))
            }
            Entry::Check { stream, address, bytes, stamp } => {
                self.launch(stream, Kernel::new().expects(self.here(address), bytes, stamp))
            }
            Entry::Copy { stream, to, from, bytes } => {
                let kernel = Kernel::new().copies(self.here(to), self.here(from), bytes);
                self.launch(stream, kernel)
            }
            memory => self.step_of_memory(memory),
        }
    }

    fn step_of_memory(&mut self, entry: Entry) -> Result<(), SimError> {
        match entry {
            Entry::Segment { address, bytes } => {
                let here = self.device.alloc_segment(bytes)?;
                self.places.insert(address, (bytes, here));
                Ok(())
            }
            Entry::Range { address, bytes } => {
                let here = self.device.reserve_range(bytes)?;
                self.places.insert(address, (bytes, here));
                Ok(())
            }
            Entry::Granule { granule, bytes } => {
                self.granules.insert(granule, self.device.create_granule(bytes)?);
                Ok(())
            }
            Entry::GranuleGone { granule } => {
                let granule = self.granules.remove(&granule).expect("it was made");
                // SAFETY: it is of this device, which itself refuses what is still mapped.
                unsafe { self.device.destroy_granule(granule) }.map_err(|(_, error)| error)
            }
            Entry::SegmentGone { address, bytes } => {
                let (_, here) = self.places.remove(&address).expect("it was taken");
                // SAFETY: there is no memory but the simulation's own, which judges this.
                unsafe { self.device.free_segment(here, bytes) }
            }
            Entry::RangeGone { address, bytes } => {
                let (_, here) = self.places.remove(&address).expect("it was reserved");
                // SAFETY: as for a segment.
                unsafe { self.device.release_range(here, bytes) }
            }
            Entry::Map { address, bytes, granule } => {
                let here = self.here(address);
                // SAFETY: as for a segment.
                unsafe { self.device.map(here, bytes, &self.granules[&granule]) }
            }
            Entry::SetAccess { address, bytes } => {
                // SAFETY: as for a segment.
                unsafe { self.device.set_access(self.here(address), bytes, &[]) }
            }
            Entry::Unmap { address, bytes } => {
                // SAFETY: as for a segment.
                unsafe { self.device.unmap(self.here(address), bytes) }
            }
            other => unreachable!("not about memory: {other:?}"),
        }
    }

    fn record(
        &self,
        record: impl FnOnce(&SimDevice, &SimEvent) -> Result<(), SimError>,
    ) -> Result<Rc<Recorded>, SimError> {
        let event = self.device.create_event()?;
        let recorded = Recorded { device: self.device.clone(), event: Some(event) };
        record(&self.device, recorded.event())?;
        Ok(Rc::new(recorded))
    }

    /// The host has seen that all of this has finished; an event that was never recorded is nothing.
    fn sees_finished(&self, recorded: Option<&Rc<Recorded>>) -> Result<(), SimError> {
        recorded.map_or(Ok(()), |recorded| self.device.synchronize_event(recorded.event()))
    }

    fn launch(&self, stream: u64, kernel: Kernel) -> Result<(), SimError> {
        self.device.launch(&self.streams[&stream], kernel)
    }

    /// The address here of what was at this address there.
    fn here(&self, address: u64) -> u64 {
        let place = self.places.range(..=address).next_back();
        let (there, (bytes, here)) = place.expect("an address of a segment or range");
        assert!(address - there < *bytes, "{address:#x} is in no segment or range");
        here + (address - there)
    }
}
