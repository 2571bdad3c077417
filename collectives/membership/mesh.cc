#include "collectives/membership/mesh.h"

#include <string>
#include <utility>

namespace tarpon::mesh {

Mesh::Mesh(Rank rank, std::uint32_t world_size, std::uint32_t job, Network& network)
    : streams_(rank, world_size, job, network), rank_(rank), job_line_(streams_) {}

PartLine* Mesh::add(std::uint16_t communicator, std::vector<Rank> members) {
  if (used_.test(communicator)) return nullptr;
  used_.set(communicator);
  RankMap ranks(std::move(members));
  return &lines_.try_emplace(communicator, streams_, communicator, rank_, std::move(ranks))
              .first->second;
}

void Mesh::remove(std::uint16_t communicator) {
  lines_.erase(communicator);
}

/// Tells a rank that opens a line which this rank has closed: it may have missed that.
void Mesh::answer_removed(const Streams::Event& event) {
  const Frame& frame = event.frame;
  if (frame.kind != FrameKind::line || frame.body.empty() ||
      static_cast<LineState>(frame.body[0]) != LineState::opened) {
    return;
  }
  const std::string closed(1, static_cast<char>(LineState::closed));
  streams_.send(event.rank, FrameKind::line, closed, frame.communicator);
}

void Mesh::take_frame(Streams::Event event) {
  const std::uint16_t communicator = event.frame.communicator;
  if (communicator == 0) return job_line_.take(std::move(event));
  const auto found = lines_.find(communicator);
  if (found != lines_.end()) return found->second.take(std::move(event));
  if (used_.test(communicator)) answer_removed(event);
}

void Mesh::tick(Time now) {
  streams_.tick(now);
  while (auto event = streams_.next_event()) {
    if (event->kind == Streams::Event::Kind::frame) {
      take_frame(*std::move(event));
      continue;
    }
    for (auto& [communicator, line] : lines_) line.take(*event);
    job_line_.take(*std::move(event));
  }
}

}  // namespace tarpon::mesh
