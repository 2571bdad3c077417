#include "collectives/membership/hub.h"

#include <optional>
#include <system_error>

#include "transport/rank_mask.h"
#include "xdp/base/system_limits.h"

namespace tarpon::mesh {
namespace {

void pass_on(const Membership::Handlers& handlers, const Member::News& news) {
  switch (news.kind) {
    case Member::News::Kind::fact:
      return handlers.learned(news.fact);
    case Member::News::Kind::aborted:
      return handlers.aborted(news.rank, news.text);
    case Member::News::Kind::epoch:
      return handlers.epoch_decided(news.epoch);
    case Member::News::Kind::rejoin:
      return handlers.rejoining(news.ranks);
  }
}

}  // namespace

Hub::Hub(const MembershipOptions& options, std::unique_ptr<SocketNetwork> network)
    : network_(std::move(network)),
      mesh_(options.rank, options.world_size, options.job, *network_) {}

std::unique_ptr<Part> Hub::add_job(const MembershipOptions& options) {
  const std::lock_guard lock(mutex_);
  auto part = std::make_unique<Part>(options, mesh_.job_line());
  parts_.push_back(part.get());
  return part;
}

std::unique_ptr<Part> Hub::add_split(const MembershipOptions& options, std::vector<Rank> members) {
  const std::lock_guard lock(mutex_);
  PartLine* const line = mesh_.add(options.communicator, std::move(members));
  if (line == nullptr) return nullptr;
  auto part = std::make_unique<Part>(options, *line);
  parts_.push_back(part.get());
  return part;
}

void Hub::close(Part& part) {
  std::unique_lock lock(mutex_);
  std::erase(parts_, &part);
  if (part.split != nullptr) part.split->close();
  changed_.wait(lock, [&] { return told_ != &part; });
}

void Hub::remove(Part& part) {
  const std::lock_guard lock(mutex_);
  if (part.split != nullptr) mesh_.remove(part.options.communicator);
}

Result<void> Hub::start_thread() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(start_error(error.code().value(), "cannot start the thread of the control mesh"));
  }
  return {};
}

void Hub::stop_thread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  network_->wake();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  network_->close_all();
}

void Hub::set_handlers(Part& part, Membership::Handlers handlers) {
  {
    const std::lock_guard lock(mutex_);
    part.handlers = std::move(handlers);
    part.has_handlers = true;
  }
  network_->wake();  // delivers the news that they missed
}

// The functions below need the lock.

void Hub::advance(Time now) {
  if (!stopping_) mesh_.tick(now);
  for (Part* const part : parts_) part->member.advance(now);
}

Time Hub::next_deadline() const {
  Time next = mesh_.next_deadline();
  for (const Part* const part : parts_) next = std::min(next, part->member.next_deadline());
  return next;
}

void Hub::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    network_->dispatch(mesh_.streams(), monotonic_now());
    ask_last_heard(lock);
    advance(monotonic_now());
    changed_.notify_all();
    tell(lock);
    const Time next = next_deadline();
    // dispatch() may have consumed the wake-up of stop_thread() together with an earlier one.
    if (stopping_) return;
    lock.unlock();
    network_->wait(monotonic_now(), next);
    lock.lock();
  }
}

/// Calls `handler(handlers of the part)` without the lock.
template <typename Handler>
void Hub::call(std::unique_lock<std::mutex>& lock, const Part& part, Handler handler) {
  told_ = &part;
  lock.unlock();
  handler(part.handlers);
  lock.lock();
  told_ = nullptr;
  changed_.notify_all();
}

/// Asks the job when the ranks whose death may soon be proven were heard last.
void Hub::ask_last_heard(std::unique_lock<std::mutex>& lock) {
  for (const Rank rank : ranks_of(mesh_.streams().doubted())) {
    const auto job = std::find_if(parts_.begin(), parts_.end(),
                                  [](const Part* part) { return part->split == nullptr; });
    if (job == parts_.end() || !(*job)->has_handlers) return;
    const Time asked = monotonic_now();
    Time heard{};
    call(lock, **job, [&](const auto& handlers) { heard = handlers.last_heard(rank); });
    mesh_.streams().set_last_heard(rank, heard, asked);
  }
}

/// Tells the handlers of all parts until there is no news.
void Hub::tell(std::unique_lock<std::mutex>& lock) {
  for (std::size_t i = 0; i < parts_.size() && !stopping_;) {
    // After a handler the list may have changed.
    i = tell_once(lock, *parts_[i]) ? 0 : i + 1;
  }
}

/// False when the part has no news, and no datagrams to send.
bool Hub::tell_once(std::unique_lock<std::mutex>& lock, Part& part) {
  if (!part.has_handlers) return false;
  if (const auto news = part.member.next_news()) {
    call(lock, part, [&](const auto& handlers) { pass_on(handlers, *news); });
    return true;
  }
  if (const auto datagrams = part.member.take_datagrams(); !datagrams.empty()) {
    call(lock, part, [&](const auto& handlers) { handlers.send(datagrams); });
    return true;
  }
  if (!part.member.numbers_wanted()) return false;
  std::vector<EpochRecord::Start> numbers;
  call(lock, part, [&](const auto& handlers) { numbers = handlers.next_numbers(); });
  if (std::find(parts_.begin(), parts_.end(), &part) == parts_.end()) return true;
  const Time now = monotonic_now();
  part.member.answer_numbers(numbers, now);
  advance(now);
  return true;
}

}  // namespace tarpon::mesh
