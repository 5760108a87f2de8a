//! A table of streams: numbers that are used again, ids that are not.
//!
//! Promises: an id names one stream for ever (a number's second user has another generation); a lookup is one
//! index. The number goes to the kernel with every operation, so it is given back only when none is in flight.

/// One stream of one [`super::Streams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

#[derive(Debug)]
struct Slot<S> {
    generation: u32,
    stream: Option<S>,
}

#[derive(Debug)]
pub(super) struct Slots<S> {
    slots: Vec<Slot<S>>,
    free: Vec<u32>,
}

impl<S> Slots<S> {
    pub(super) fn new() -> Slots<S> {
        Slots { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, stream: S) -> StreamId {
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(index as usize) {
            Some(slot) => slot.stream = Some(stream),
            None => self.slots.push(Slot { generation: 0, stream: Some(stream) }),
        }
        StreamId { index, generation: self.slots[index as usize].generation }
    }

    pub(super) fn get(&mut self, id: StreamId) -> Option<&mut S> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.stream.as_mut() } else { None }
    }

    /// The stream that has this number now.
    pub(super) fn at(&mut self, index: u32) -> Option<&mut S> {
        self.slots.get_mut(index as usize)?.stream.as_mut()
    }

    /// The id of the stream that has this number now.
    pub(super) fn id(&self, index: u32) -> StreamId {
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        StreamId { index, generation }
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<S> {
        let slot = self.slots.get_mut(index as usize)?;
        let stream = slot.stream.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(stream)
    }

    /// Streams in the table.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<S>>() + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_past_finds_nothing() {
        let mut slots = Slots::new();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first.index), Some('a'));
        assert_eq!(slots.remove(first.index), None);
        let second = slots.insert('b');
        assert_eq!(second.index, first.index, "the number is used again");
        assert_eq!(slots.get(first), None);
        assert_eq!((slots.get(second).copied(), slots.len()), (Some('b'), 1));
    }
}
