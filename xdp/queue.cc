#include "xdp/queue.h"

#include <algorithm>
#include <utility>

namespace tarpon::xdp {

Result<Queue> Queue::open(const QueueOptions& options) {
  const std::uint32_t span = (options.transmit_bytes + kFrameBytes - 1) / kFrameBytes;
  auto umem = Umem::map(options.receive_frames + options.transmit_frames * span);
  if (!umem) return fail(umem.error());
  SocketOptions wanted = options.socket;
  wanted.multi_buffer = wanted.multi_buffer || span > 1;
  auto socket = Socket::create(*umem, wanted);
  if (!socket) return fail(socket.error());
  Queue queue(std::move(*umem), std::move(*socket), options, span);
  queue.multi_buffer_ = wanted.multi_buffer;
  queue.refill();
  auto grant = queue.socket_.bind();
  if (!grant) return fail(grant.error());
  queue.grant_ = *grant;
  return queue;
}

Queue::Queue(Umem umem, Socket socket, const QueueOptions& options, std::uint32_t span)
    : umem_(std::move(umem)),
      socket_(std::move(socket)),
      receive_(0, options.receive_frames),
      transmit_(options.receive_frames, umem_.frames(), span),
      first_transmit_(options.receive_frames),
      span_(span),
      chunks_(umem_.frames() - first_transmit_) {}

bool Queue::send_chunks(std::uint32_t frame, std::uint32_t offset, std::uint32_t bytes) {
  const std::uint32_t frame_bytes = span_ * kFrameBytes;
  const bool inside = bytes > 0 && offset < frame_bytes && bytes <= frame_bytes - offset;
  const std::uint32_t end = inside ? offset + bytes : 0;
  const std::uint32_t first = offset / kFrameBytes;
  const std::uint32_t last = inside ? (end - 1) / kFrameBytes : first;
  const std::uint32_t descriptors = last - first + 1;
  if (!inside || socket_.transmit.room(written_ + descriptors) < written_ + descriptors) {
    give_back_unsent(frame);
    return false;
  }
  if (!transmit_.move(frame, FrameState::filling, FrameState::sending)) return false;
  for (std::uint32_t chunk = first; chunk <= last; ++chunk) {
    const std::uint32_t from = std::max(offset, chunk * kFrameBytes);
    const std::uint32_t to = std::min(end, (chunk + 1) * kFrameBytes);
    write(frame, frame + chunk, from % kFrameBytes, to - from,
          chunk == last ? 0 : kPacketContinues);
  }
  chunks_[frame - first_transmit_].uncompleted = descriptors;
  ++in_flight_;
  return true;
}

Kick Queue::kick() {
  if (written_ > 0) socket_.transmit.submit(std::exchange(written_, 0));
  return socket_.kick_transmit();
}

void Queue::reap() {
  const std::uint32_t count = socket_.completion.available(socket_.completion.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t chunk = socket_.completion.at(i) / kFrameBytes - first_transmit_;
    if (chunk >= chunks_.size() || chunks_[chunk].frame == FramePool::kNone) {
      ++violations_;
      continue;
    }
    const std::uint32_t frame = std::exchange(chunks_[chunk].frame, FramePool::kNone);
    if (--chunks_[frame - first_transmit_].uncompleted > 0) continue;
    if (transmit_.move(frame, FrameState::sending, FrameState::free)) --in_flight_;
  }
  socket_.completion.release(count);
}

std::uint32_t Queue::receive(std::span<ReceivedChunk> chunks) {
  const std::uint32_t count = socket_.receive.available(static_cast<std::uint32_t>(chunks.size()));
  std::uint32_t used = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const xdp_desc& descriptor = socket_.receive.at(i);
    const auto frame = static_cast<std::uint32_t>(descriptor.addr / kFrameBytes);
    if (!valid_descriptor(descriptor, umem_.bytes(), multi_buffer_) ||
        !receive_.move(frame, FrameState::fill, FrameState::received)) {
      ++violations_;
      continue;
    }
    chunks[used++] = {.frame = frame,
                      .bytes = {umem_.data() + descriptor.addr, descriptor.len},
                      .continues = (descriptor.options & kPacketContinues) != 0};
  }
  socket_.receive.release(count);
  return used;
}

void Queue::refill() {
  const std::uint32_t room = socket_.fill.room(static_cast<std::uint32_t>(receive_.available()));
  for (std::uint32_t i = 0; i < room; ++i) {
    socket_.fill.at(i) = std::uint64_t{receive_.take(FrameState::fill)} * kFrameBytes;
  }
  if (room > 0) socket_.fill.submit(room);
  socket_.kick_receive();
}

}  // namespace tarpon::xdp
