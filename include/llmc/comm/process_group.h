#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

/// How the processes of a run find each other. What is left at its default comes from the
/// launcher's environment variables (Open MPI, MPICH, SLURM, torchrun).
struct StartUp {
  static constexpr int kDefaultPort = 29417;

  /// "mpi"; "tcp": all connect to `address`; "file": rank 0 says in `file` where it listens;
  /// "auto": by the file or address that is given, else as the launcher offers, and a process on
  /// its own where there is none.
  std::string method = "auto";
  /// tcp: host name or IP address of rank 0.
  std::string address = {};
  /// tcp: where rank 0 listens. 0: the launcher's choice, or kDefaultPort.
  int port = 0;
  /// −1 and 0: the launcher's.
  int rank = -1;
  int size = 0;
  /// file: a path that all ranks see.
  std::string file = {};
  /// tcp and file: a word that only this run's processes know; others are turned away. Empty: the
  /// environment variable LLMC_COMM_TOKEN, else the launcher's name of the job.
  std::string token = {};
  /// How GPUs exchange: "copy": they write into each other's memory, where all are of one machine;
  /// "nccl"; "auto": copy where that is possible, else nccl. Other builds take only "auto".
  std::string transport = "auto";
  /// For all ranks to come, seconds.
  double deadline_s = 300;
  /// A rank that gives no sign of life for so long has failed, seconds.
  double silence_s = 20;
};

/// The processes that were started together, known before any of them opens a device. Beside what
/// they compute, each gives rank 0 a sign of life every second. So all know within `silence_s` of
/// one that hangs or is cut off, and at once of one that ended. Safe to use from several threads.
///
/// The destructor waits until all ranks have left. Where an error destroys the group, it does not
/// wait, and the others are told. MPI, where this started it, ends with the group and cannot be
/// started again in the same process. Its end waits for all ranks and cannot be broken off: where
/// one falls silent or hangs there, the others log that and end their processes, with status 1.
class ProcessGroup {
 public:
  /// Throws a config error for options that make no sense or that this build's communicator does
  /// not have, a comm error where ranks are missing at the deadline or do not fit together.
  static std::shared_ptr<ProcessGroup> join(const StartUp& options = {});

  struct Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// "alone", "mpi", "tcp" or "file".
  std::string_view method() const;
  int rank() const;
  int size() const;
  /// Among the ranks on this machine.
  int local_rank() const;
  int local_size() const;

  /// StartUp::transport.
  std::string_view transport() const;

  /// The bytes, at most 1 MiB, that rank 0 passes, on all ranks; the argument of the others is
  /// ignored. All ranks must call it.
  std::string share(std::string_view bytes);
  /// The bytes of every rank, in order of rank; together at most 1 MiB. All ranks must call it.
  std::vector<std::string> gather(std::string_view bytes);

  /// Throws the error that says which rank has failed, if one has: a comm error, or of the kind for
  /// which that rank gave up, so that all ranks take a wrong option on one for what it is.
  void check() const;
  /// Tells the others that this rank gives up, and why.
  void give_up(const std::exception& why) noexcept;
  /// To be called for every call that needs all ranks: checks, and notices where a rank has left
  /// that will not make it.
  void count_call();
  /// `call` runs once, in another thread, when a rank has failed: at once if one has already. An
  /// empty function takes it back, and waits for a call that is under way.
  void on_failure(std::function<void()> call);
  /// For memory that other ranks reach: it goes when all of them have left.
  void keep(std::shared_ptr<void> reached);

  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// For a program that works in one process: throws a config error where a launcher has started it
/// several times.
void expect_one_process(std::string_view program);

/// The number of the GPU for a rank, of those that the process sees: its own one where there are
/// enough for the machine's ranks, the only one where the launcher has made the choice. Else a
/// config error.
int choose_gpu(const ProcessGroup& processes, int visible);

}  // namespace llmc
