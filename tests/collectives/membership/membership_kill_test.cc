// Live jobs whose ranks are processes, some of which are killed or stopped.
#include <gtest/gtest.h>

#include <cmath>

#include "collectives/rendezvous/control.h"
#include "tests/support/membership_job.h"

namespace tarpon::membership_kill_test {
namespace {

using namespace testing_support;

TEST(MembershipKillTest, killed__exact_calls_in_flight_and_later_ones_name_it) {
  const Shared board;
  run_processes(4, {2}, [&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    std::vector<float> values(100'000, 1.0f);
    must(communicator.allreduce(patient_call(values)));
    if (rank == 2) {
      await(board, {0, 1, 3}, 1);
      usleep(20'000);  // the others are asleep in their calls
      kill_self(board);
    }
    board->stage[rank] = 1;
    const Report report = must(communicator.allreduce(patient_call(values)));
    board->ended_ns[rank] = clock_ns();
    require_dead(report, {2});
    for (int again = 0; again < 3; ++again) {
      require_dead(must(communicator.allreduce(patient_call(values))), {2});
    }
    auto pending = communicator.allreduce_async(patient_call(values));
    require(pending.has_value(), "no call");
    require_dead(pending->wait(), {2});
    const auto barrier = communicator.barrier(60s);
    require(!barrier && barrier.error().message.find("rank 2 is dead") != std::string::npos,
            "barrier passes");
    board->stage[rank] = 2;
    // Who leaves in order is not dead: the others have looked by now.
    await(board, {0, 1, 3}, 2);
  });
  for (const std::size_t rank : {0u, 1u, 3u}) {
    std::printf("rank %zu knew after %.2f ms\n", rank,
                static_cast<double>(board->ended_ns[rank] - board->killed_ns) * 1e-6);
  }
}

TEST(MembershipKillTest, killed__several_at_once_are_all_named_in_the_end) {
  const Shared board;
  run_processes(5, {0, 3}, [&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    std::vector<float> values(1000, 1.0f);
    must(communicator.allreduce(patient_call(values)));
    if (rank == 0 || rank == 3) kill_self(board);
    const Time limit = monotonic_now() + 20s;
    Report report;
    do {
      require(monotonic_now() < limit, "one of the dead is not noticed: " + report.detail);
      report = must(communicator.allreduce(patient_call(values)));
      require(report.status == Status::peer_dead, report.detail);
      for (const Rank blamed : report.blamed) {
        require(blamed == 0 || blamed == 3, "blames the living: " + report.detail);
      }
    } while (report.blamed.size() < 2);
    board->stage[rank] = 1;
    await(board, {1, 2, 4}, 1);
  });
}

TEST(MembershipKillTest, killed__bounded_calls_go_on_without_it) {
  const Shared board;
  run_processes(4, {1}, [&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    constexpr std::size_t kCount = 40'000;
    std::vector<float> values(kCount, static_cast<float>(rank + 1));
    must(communicator.allreduce(patient_call(values, Mode::bounded)));
    if (rank == 1) {
      await(board, {0, 2, 3}, 1);
      usleep(20'000);
      kill_self(board);
    }
    board->stage[rank] = 1;
    // Bounds are 10 s: only the news ends these. 1 + 3 + 4, scaled to four.
    for (int call = 0; call < 12; ++call) {
      values.assign(kCount, static_cast<float>(rank + 1));
      const Report report = must(communicator.allreduce(patient_call(values, Mode::bounded)));
      require(report.status == Status::partial, std::string(name(report.status)) + report.detail);
      require(report.late_ranks == std::vector<Rank>{1}, "late ranks: " + report.detail);
      require(report.missing[1] == kCount, "rank 1 is in the result");
      for (const ContributorRun& run : report.runs) {
        require(run.contributors == 0 || run.contributors == 0b1101, "contributors");
        const float expected = run.contributors == 0 ? 0.0f : 8.0f * 4 / 3;
        require(std::abs(values[run.first] - expected) < 1e-4f, "a value is wrong");
      }
    }
    board->stage[rank] = 2;
    await(board, {0, 2, 3}, 2);
  });
}

TEST(MembershipKillTest, killed__a_job_of_two_goes_on_alone) {
  const Shared board;
  run_processes(2, {0}, [&](Communicator& communicator) {
    std::vector<float> values(5000, 2.0f);
    must(communicator.allreduce(patient_call(values)));
    if (communicator.rank() == 0) kill_self(board);
    Report report;
    while (report.status != Status::partial) {
      report = must(communicator.allreduce(patient_call(values, Mode::bounded)));
    }
    require(report.late_ranks == std::vector<Rank>{0}, report.detail);
    require_dead(must(communicator.allreduce(patient_call(values))), {0});
  });
}

TEST(MembershipKillTest, killed__a_caller_that_polls_learns_it) {
  const Shared board;
  run_processes(
      3, {1},
      [&](Communicator& communicator) {
        std::vector<float> values(5000, 2.0f);
        must(communicator.allreduce(patient_call(values)));
        if (communicator.rank() == 1) kill_self(board);
        auto pending = communicator.allreduce_async(patient_call(values));
        require(pending.has_value(), "no call");
        const Time limit = monotonic_now() + 20s;
        while (!pending->done() && monotonic_now() < limit) communicator.poll(20s);
        require_dead(pending->wait(), {1});
        board->stage[communicator.rank()] = 1;
        await(board, {0, 2}, 1);
      },
      [](CommunicatorOptions& options) { options.progress_thread = false; });
}

TEST(MembershipKillTest, stopped__bounded_calls_go_on_without_it_until_it_runs_again) {
  const Shared board;
  run_processes(4, {}, [&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    constexpr std::size_t kCount = 20'000;
    std::vector<float> values(kCount, 1.0f);
    must(communicator.allreduce(patient_call(values)));
    if (rank == 1) {
      board->pid = getpid();
      raise(SIGSTOP);
    }
    if (rank == 0) {
      const Time limit = monotonic_now() + 20s;
      while (board->pid == 0) require(monotonic_now() < limit, "rank 1 does not come");
    }
    const auto call = [&] {
      values.assign(kCount, 1.0f);
      auto arguments = patient_call(values, Mode::bounded);
      arguments.bound = 20s;  // no bound ends these
      return must(communicator.allreduce(arguments));
    };
    if (rank != 1) {
      for (int i = 0; i < 5; ++i) {
        const Report report = call();
        require(report.status == Status::partial, std::string(name(report.status)));
        require(report.late_ranks == std::vector<Rank>{1}, "late ranks: " + report.detail);
      }
      board->stage[rank] = 1;
      if (rank == 0) {
        await(board, {2, 3}, 1);
        kill(board->pid, SIGCONT);
      }
    } else {
      for (int i = 0; i < 5; ++i) {
        const Report report = call();
        require(report.status == Status::late_self || report.status == Status::partial,
                std::string(name(report.status)) + ": " + report.detail);
      }
      board->stage[1] = 1;
    }
    await(board, {0, 1, 2, 3}, 1);
    Report report;
    const Time limit = monotonic_now() + 20s;
    do {  // until all know that it is back
      require(monotonic_now() < limit, "it does not take part again: " + report.detail);
      require(communicator.control().all_gather("", monotonic_now() + 20s).has_value(), "gather");
      report = call();
      const auto all = communicator.control().all_gather(
          report.status == Status::complete ? "y" : "n", monotonic_now() + 20s);
      require(all.has_value(), "gather");
      if (std::count(all->begin(), all->end(), "y") < 4) report.status = Status::partial;
    } while (report.status != Status::complete);
    const auto closed = communicator.close(20s);
    require(closed.has_value(), closed ? "" : closed.error().message);
  });
}

TEST(MembershipKillTest, shrink__the_survivors_go_on_exactly) {
  const Shared board;
  run_processes(5, {0, 3}, [&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    std::vector<float> values(30'000, static_cast<float>(rank));
    must(communicator.allreduce(patient_call(values)));
    if (rank == 0 || rank == 3) kill_self(board);
    values.assign(30'000, static_cast<float>(rank));
    require(must(communicator.allreduce(patient_call(values))).status == Status::peer_dead,
            "no death");
    // Where one of the two dies only now, the first attempt may have waited for it.
    auto shrunk = communicator.shrink(20s);
    require(shrunk.has_value(), shrunk ? "" : shrunk.error().message);
    Communicator& survivors = **shrunk;
    require(survivors.world_size() == 3, "world size");
    require(survivors.rank() == (rank == 1 ? 0 : rank == 2 ? 1 : 2), "order of ranks");
    for (int call = 0; call < 3; ++call) {
      values.assign(30'000, static_cast<float>(rank));
      const Report report = must(survivors.allreduce(patient_call(values)));
      require(report.status == Status::complete, report.detail);
      require(values[0] == 7.0f && values.back() == 7.0f, "sum of ranks 1, 2 and 4");
    }
    const Report old = must(communicator.allreduce(patient_call(values)));
    require(old.status == Status::aborted, "the old communicator still works");
    const auto closed = survivors.close(20s);
    require(closed.has_value(), closed ? "" : closed.error().message);
  });
}

/// The half that is left cannot know whether the other half goes on as well.
TEST(MembershipKillTest, shrink__says_that_half_of_the_ranks_is_no_majority) {
  const Shared board;
  run_processes(
      2, {1},
      [&](Communicator& communicator) {
        if (communicator.rank() == 1) {
          board->pid = getpid();
          kill(getpid(), SIGSTOP);
          require(false, "a stopped rank runs again");
        }
        const auto alone = communicator.shrink(20s);
        require(alone.has_value(), alone ? "" : alone.error().message);
        require((*alone)->world_size() == 1, "world size");
        const std::string& why = (*alone)->left_out();
        require(why.starts_with("rank 1 is dead") && why.ends_with("(without majority)"), why);
        require(communicator.left_out().empty(), "connect() left no rank out");
        kill(board->pid, SIGKILL);
      },
      [](CommunicatorOptions& options) { options.dead_after = 300ms; });
}

/// Each call ends at its deadline, until the time in which the calls need rank 1 is enough.
TEST(MembershipKillTest, allreduce__with_deadlines_below_dead_after_finds_a_silent_rank_dead) {
  const Shared board;
  run_processes(
      3, {1},
      [&](Communicator& communicator) {
        if (communicator.rank() == 1) {
          board->pid = getpid();
          kill(getpid(), SIGSTOP);
          require(false, "a stopped rank runs again");
        }
        std::vector<float> values(1000, 1.0f);
        AllreduceArguments arguments = patient_call(values);
        arguments.deadline = 400ms;
        const Time limit = monotonic_now() + 20s;
        for (Status status = Status::complete; status != Status::peer_dead;) {
          require(monotonic_now() < limit, "rank 1 does not become dead");
          status = must(communicator.allreduce(arguments)).status;
        }
        board->stage[communicator.rank()] = 1;
        await(board, {0, 2}, 1);
        if (communicator.rank() == 0) kill(board->pid, SIGKILL);
      },
      [](CommunicatorOptions& options) { options.dead_after = 1s; });
}

/// Rank 1 plans, and is rank 0 of the next communicator.
TEST(MembershipKillTest, rejoin__of_rank_0_that_was_silent) {
  const Shared board;
  run_processes(
      3, {},
      [&](Communicator& communicator) {
        const Rank rank = communicator.rank();
        // Large enough for TAR. With one-shot the data of the others waits for rank 0, and
        // completes its call although they have given it up.
        std::vector<float> values(10'000, 1.0f);
        must(communicator.allreduce(patient_call(values)));
        if (rank == 0) {
          board->pid = getpid();
          raise(SIGSTOP);
          const Report report = must(communicator.allreduce(patient_call(values)));
          require(report.status == Status::evicted, std::string(name(report.status)));
        } else {
          const Report report = must(communicator.allreduce(patient_call(values)));
          require(report.status == Status::peer_dead, std::string(name(report.status)));
          board->stage[rank] = 1;
          await(board, {1, 2}, 1);
          if (rank == 1) kill(board->pid, SIGCONT);
          const Time limit = monotonic_now() + 20s;
          while ((communicator.rejoin_wanted() & 1) == 0) {
            require(monotonic_now() < limit, "rank 0 does not come back");
            usleep(1000);
          }
        }
        const auto whole = communicator.rejoin(20s);
        require(whole.has_value(), whole ? "" : whole.error().message);
        require((*whole)->world_size() == 3, "world size");
        require((*whole)->rank() == (rank == 1 ? 0 : rank == 0 ? 1 : 2), "order of ranks");
        values.assign(10'000, static_cast<float>(rank));
        const Report report = must((*whole)->allreduce(patient_call(values)));
        require(report.status == Status::complete && values[0] == 3.0f, report.detail);
        const auto closed = (*whole)->close(20s);
        require(closed.has_value(), closed ? "" : closed.error().message);
      },
      [](CommunicatorOptions& options) { options.dead_after = 400ms; });
}

/// Rank 0 held the star over which close() went once.
TEST(MembershipKillTest, close__works_after_the_death_of_rank_0) {
  const Shared board;
  run_processes(4, {0}, [&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    std::vector<float> values(1000, 1.0f);
    must(communicator.allreduce(patient_call(values)));
    if (rank == 0) {
      await(board, {1, 2, 3}, 1);
      kill_self(board);
    }
    board->stage[rank] = 1;
    require_dead(must(communicator.allreduce(patient_call(values))), {0});
    const auto closed = communicator.close(20s);
    require(closed.has_value(), closed ? "" : closed.error().message);
  });
}

TEST(MembershipKillTest, agree__when_the_decider_dies_the_next_one_decides) {
  const Shared board;
  run_processes(4, {0, 1}, [&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    const auto judge = [&](std::uint64_t step, double lost) {
      return communicator.agree(step, {.lost_fraction = lost}, 20s);
    };
    const StepVerdict first = judge(0, rank == 3 ? 0.1 : 0.0);
    require(first.verdict == Verdict::skip && first.decided_by == 0, first.detail);
    if (rank == 0) {
      await(board, {1, 2, 3}, 1);
      kill_self(board);
    }
    board->stage[rank] = 1;
    const StepVerdict second = judge(1, 0);
    require(second.verdict == Verdict::apply && second.decided_by == 1, second.detail);
    if (rank == 1) {
      await(board, {2, 3}, 2);
      kill_self(board);
    }
    board->stage[rank] = 2;
    const StepVerdict third = judge(2, rank == 2 ? 0.9 : 0.0);
    require(third.verdict == Verdict::skip && third.decided_by == 2, third.detail);
    const StepVerdict again = judge(0, 0);
    require(again.same(first), "an old step has another verdict");
    StepVerdict next = third;  // the proofs of both deaths reach rank 2 in a moment
    while (next.gone != 0b11 && next.step < 1000) next = judge(next.step + 1, 0);
    require(next.gone == 0b11, "the verdicts do not name the ranks that are gone");
    board->stage[rank] = 3;
    await(board, {2, 3}, 3);
  });
}

}  // namespace
}  // namespace tarpon::membership_kill_test
