#include "llmc/comm/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "comm/launcher.h"
#include "comm/process_group_impl.h"
#include "llmc/core/error.h"
#include "llmc/core/log.h"

namespace llmc {
namespace {

std::shared_ptr<ProcessGroup> make_group(std::string_view method, Star star, const StartUp& options,
                                         std::unique_ptr<MpiSession> session = {}) {
  return std::make_shared<ProcessGroup>(
      std::make_unique<ProcessGroup::Impl>(method, std::move(star), options, std::move(session)));
}

Environment process_environment() {
  return [](const char* name) { return std::getenv(name); };
}

/// A build for one process must not train N times in parallel because a launcher started it so.
void refuse_other_ranks(const Launched& launched, const StartUp& options) {
  if (launched.size > 1) {
    fail(ErrorKind::kConfig, "comm", "expected one process, got ", launched.size, " started by ",
         launched.by, "; this build trains in one: build with the preset cpu-mpi or cuda-nccl");
  }
  if (options.method != "auto" || options.size > 1 || !options.address.empty() ||
      !options.file.empty()) {
    fail(ErrorKind::kConfig, "comm",
         "comm_init: expected auto and no other start-up option, as this build trains in one "
         "process; build with the preset cpu-mpi or cuda-nccl");
  }
}

Star meet_by_mpi(MpiSession& session, Deadline deadline) {
  if (session.size() == 1) return {};
  if (session.rank() == 0) {
    Listener listener(0, deadline);
    const Meeting meeting = new_meeting(listener);
    session.broadcast(meeting_text(meeting));
    return host_ranks(listener, meeting.secret, session.size(), deadline);
  }
  const auto meeting = parse_meeting(session.broadcast({}));
  if (!meeting) fail(ErrorKind::kComm, "comm", "expected rank 0 to say where it listens");
  return meet_at(*meeting, session.rank(), session.size(), deadline);
}

}  // namespace

ProcessGroup::Impl::Impl(std::string_view how, Star star, const StartUp& options,
                         std::unique_ptr<MpiSession> mpi)
    : method(how),
      transport(options.transport),
      rank(star.rank),
      size(star.size),
      local_rank(star.local_rank),
      local_size(star.local_size),
      errors(std::uncaught_exceptions()),
      session(std::move(mpi)),
      watch(std::move(star), options.silence_s) {}

ProcessGroup::Impl::~Impl() {
  if (std::uncaught_exceptions() > errors) watch.give_up("an error ended it", ErrorKind::kComm);
  watch.leave();
  if (!session) return;
  if (watch.failed()) {
    session->abandon();
    return;
  }
  // MPI's end waits for all ranks and cannot be broken off.
  watch.on_failure([this] {
    log(LogLevel::kError, watch.failed_end());
    std::fflush(stdout);
    // One after the other: Open MPI's mpirun may hang where processes end while it ends them.
    std::this_thread::sleep_for(std::chrono::milliseconds(500) * std::min(rank, 4));
    ::_exit(EXIT_FAILURE);
  });
  session.reset();
  watch.on_failure({});
}

std::shared_ptr<ProcessGroup> ProcessGroup::join(const StartUp& options) {
  const Environment environment = process_environment();
  const Launched launched = read_launcher(environment);
  if (start_up_methods().empty()) refuse_other_ranks(launched, options);
  if (!has_word(transports(), options.transport)) {
    fail(ErrorKind::kConfig, "comm", "comm_transport: expected one of: ", transports(), "; got ",
         options.transport, ", which this build does not have");
  }
  const StartUp start = resolve_start_up(options, launched, environment, start_up_methods());
  if (start.method == "alone") return make_group("alone", {}, start);
  const Deadline deadline = in_seconds(start.deadline_s);
  if (start.method == "mpi") {
    std::unique_ptr<MpiSession> session = MpiSession::open();
    Star star;
    try {
      if (launched.size > 0 && session->size() != launched.size) {
        fail(ErrorKind::kConfig, "comm", "comm_init = mpi: expected ", launched.size,
             " processes as ", launched.by, " says, got ", session->size(),
             " from MPI, which was made for another launcher; start with its mpirun",
             has_word(start_up_methods(), "tcp") ? " or with comm_init = tcp" : "");
      }
      star = meet_by_mpi(*session, deadline);
    } catch (...) {
      session->abandon();
      throw;
    }
    return make_group("mpi", std::move(star), start, std::move(session));
  }
  Star star = start.method == "tcp"
                  ? meet_by_tcp({{start.address}, start.port, start.token}, start.rank, start.size,
                                deadline)
                  : meet_by_file(start.file, start.token, start.rank, start.size, deadline);
  return make_group(start.method, std::move(star), start);
}

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProcessGroup::~ProcessGroup() = default;

std::string_view ProcessGroup::method() const {
  return impl_->method;
}
int ProcessGroup::rank() const {
  return impl_->rank;
}
int ProcessGroup::size() const {
  return impl_->size;
}
int ProcessGroup::local_rank() const {
  return impl_->local_rank;
}
int ProcessGroup::local_size() const {
  return impl_->local_size;
}

std::string_view ProcessGroup::transport() const {
  return impl_->transport;
}
void ProcessGroup::keep(std::shared_ptr<void> reached) {
  impl_->reached = std::move(reached);
}

std::string ProcessGroup::share(std::string_view bytes) {
  return impl_->watch.share(bytes);
}
std::vector<std::string> ProcessGroup::gather(std::string_view bytes) {
  return impl_->watch.gather(bytes);
}
void ProcessGroup::check() const {
  impl_->watch.check();
}
void ProcessGroup::give_up(const std::exception& why) noexcept {
  impl_->watch.give_up(why.what(), kind_of(why));
}
void ProcessGroup::count_call() {
  impl_->watch.count_call();
}
void ProcessGroup::on_failure(std::function<void()> call) {
  impl_->watch.on_failure(std::move(call));
}

void expect_one_process(std::string_view program) {
  const Launched launched = read_launcher(process_environment());
  if (launched.size <= 1) return;
  fail(ErrorKind::kConfig, "comm", "expected one process, got ", launched.size, " started by ",
       launched.by, "; ", program, " works in one: start it without ", launched.by);
}

int choose_gpu(const ProcessGroup& processes, int visible) {
  if (visible >= processes.local_size()) return processes.local_rank();
  if (visible == 1) return 0;
  fail(ErrorKind::kConfig, "comm", "expected a GPU for each of the ", processes.local_size(),
       " ranks of this machine, or one that the launcher has chosen for this rank, got ", visible);
}

}  // namespace llmc
