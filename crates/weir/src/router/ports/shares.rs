//! Which worker receives by which queues of a device, and sends by which.

/// The queues of each worker, of which it sends by the first; of `queues`, at least one each.
///
/// Of a card, queue *n* is worker *n*'s, and so on in turn. A virtual cable takes a redirected frame by the queue of the CPU that redirects
/// it (CPU number modulo queues). A worker sends by that one too, where no worker before it does: what XDP forwards on its CPU and what
/// it forwards itself then keep their order.
pub(super) fn shares(queues: u32, cpus: &[u32], cable: bool) -> Vec<Vec<u32>> {
    let workers = cpus.len() as u32;
    if !cable {
        return (0..workers).map(|worker| (worker..queues).step_by(cpus.len()).collect()).collect();
    }
    let mut left: Vec<u32> = (0..queues).collect();
    let own: Vec<Option<u32>> =
        cpus.iter().map(|cpu| take(&mut left, |queue| queue == cpu % queues)).collect();
    let mut all: Vec<Vec<u32>> =
        own.into_iter().map(|own| own.or_else(|| take(&mut left, |_| true)).into_iter().collect()).collect();
    for (queue, worker) in left.into_iter().zip((0..cpus.len()).cycle()) {
        all[worker].push(queue);
    }
    all
}

fn take(left: &mut Vec<u32>, wanted: impl Fn(u32) -> bool) -> Option<u32> {
    let at = left.iter().position(|&queue| wanted(queue))?;
    Some(left.remove(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_a_card_are_dealt_in_turn() {
        assert_eq!(shares(5, &[3, 2], false), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(shares(1, &[7], false), [vec![0]]);
    }

    #[test]
    fn a_worker_sends_by_the_queue_of_its_cpu_where_that_is_free() {
        assert_eq!(shares(2, &[1], true), [vec![1, 0]], "one worker, not on the first CPU");
        assert_eq!(shares(2, &[0, 1], true), [vec![0], vec![1]]);
        assert_eq!(shares(2, &[1, 2], true), [vec![1], vec![0]]);
        assert_eq!(shares(2, &[2, 4], true), [vec![0], vec![1]], "both want the first");
        assert_eq!(shares(4, &[6, 2], true), [vec![2, 1], vec![0, 3]]);
        assert_eq!(shares(1, &[7], true), [vec![0]]);
    }
}
