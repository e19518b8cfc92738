#include "llmc/train/trainer.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <utility>

#include "llmc/core/error.h"
#include "llmc/core/log.h"
#include "llmc/ops/linear.h"
#include "train/ranks.h"

namespace llmc {
namespace {

// Weight of the newest step in the moving average of the step time.
constexpr double kTimeWeight = 0.05;
// The same where the time left is told: less of it, as it is multiplied by all steps to come.
constexpr double kPaceWeight = 0.002;

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::int64_t total_steps_of(const TrainConfig& config, const BatchSource& source,
                            std::int64_t tokens_per_step) {
  if (config.max_steps > 0) return config.max_steps;
  const std::int64_t tokens = source.tokens_per_epoch();
  if (tokens == 0) {
    fail(ErrorKind::kConfig, "trainer",
         "max_steps: expected a number above 0, got 0; the data have no end");
  }
  const std::int64_t steps = tokens / tokens_per_step * config.epochs +
                             tokens % tokens_per_step * config.epochs / tokens_per_step;
  if (steps == 0) {
    fail(ErrorKind::kConfig, "trainer", "epochs: expected at least one step, got ", config.epochs,
         " of ", tokens, " tokens at ", tokens_per_step,
         " a step; lower tokens_per_step or raise epochs");
  }
  return steps;
}

Schedule schedule_of(const TrainConfig& config, std::int64_t total_steps) {
  ScheduleOptions options;
  options.kind = schedule_from_name(config.schedule);
  options.lr = config.lr;
  options.final_lr_fraction = config.final_lr_fraction;
  options.warmup_steps = config.warmup_steps;
  options.max_steps = total_steps;
  options.decay_fraction = config.decay_fraction;
  return Schedule(options);
}

// How a sink's wish to end the run is told to the other ranks; signals are positive.
constexpr std::int32_t kStopOfSink = -1;

// Doubles go into checkpoints as text that reads back to the same bits.
std::string exact_text(double value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

template <class T>
std::optional<T> read_extra(const CheckpointInfo& info, const char* key) {
  const auto found = info.extra.find(key);
  if (found == info.extra.end()) return std::nullopt;
  const std::string& text = found->second;
  T value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) {
    fail(ErrorKind::kInput, "trainer", "checkpoint of step ", info.step, ": ", key,
         ": expected a number, got '", text, "'");
  }
  return value;
}

}  // namespace

std::int64_t micro_steps_of(std::int64_t tokens_per_step, std::int64_t micro_tokens) {
  if (tokens_per_step % micro_tokens != 0) {
    fail(ErrorKind::kConfig, "trainer", "tokens_per_step: expected a multiple of ", micro_tokens,
         " (micro_batch × seq_len × ranks), got ", tokens_per_step);
  }
  return std::max<std::int64_t>(1, tokens_per_step / micro_tokens);
}

Trainer::Trainer(const TrainConfig& config, Transformer& model, BatchSource& source,
                 Optimizer& optimizer)
    : config_(config),
      model_(model),
      source_(source),
      optimizer_(optimizer),
      micro_steps_(
          micro_steps_of(config.tokens_per_step, source.B() * source.T() * model.options().ranks)),
      total_steps_(total_steps_of(config, source, tokens_per_step())),
      schedule_(schedule_of(config, total_steps_)),
      evaluator_(model),
      snapshot_(model.stream().device(), sizeof(StepBlock)),
      marks_{TimeMark(model.stream().device()), TimeMark(model.stream().device()),
             TimeMark(model.stream().device())} {
  batch_.inputs.reserve(static_cast<std::size_t>(source.B() * source.T()));
  batch_.targets.reserve(batch_.inputs.capacity());
}

Trainer::~Trainer() = default;

void Trainer::validate_on(BatchSource& source, const TextFacts& facts) {
  val_source_ = &source;
  val_facts_ = facts;
}

void Trainer::ask(std::vector<ChoiceExample> examples) {
  check_choices(examples, model_.config().vocab_size, model_.options().seq_len);
  choices_ = std::move(examples);
}

void Trainer::decode_with(const Tokenizer& tokenizer) {
  tokenizer_ = &tokenizer;
}
void Trainer::add_sink(EventSink& sink) {
  sinks_.push_back(&sink);
}
void Trainer::stop_when(const std::atomic<int>& flag) {
  stop_flag_ = &flag;
}

void Trainer::save_to(const std::filesystem::path& run, std::string tokenizer_hash) {
  run_ = run;
  tokenizer_hash_ = std::move(tokenizer_hash);
  writer_.emplace(run, model_.parameters(), optimizer_,
                  CheckpointWriter::Options{config_.keep_checkpoints});
  writer_->allocate();
}

StopEvent Trainer::run() {
  Communicator* const comm = sharing().comm;
  if (!comm) return run_steps();
  try {
    return run_steps();
  } catch (const std::exception& error) {
    comm->give_up(error);
    throw;
  }
}

StopEvent Trainer::run_steps() {
  const auto began = Clock::now();
  stop_.reset();
  sink_asks_stop_ = false;
  signal_ = 0;
  if (config_.sample_every > 0 && sharing().rank() == 0) {
    SampleOptions options;
    options.seed = static_cast<std::uint64_t>(config_.seed);
    if (tokenizer_) {
      options.end_of_text = tokenizer_->begin_of_text();
      options.vocab_size = tokenizer_->vocab_size();
    }
    sampler_ = std::make_unique<Sampler>(model_, options);
  }
  emit(start_event());
  warn_of_useless_options();
  if (!std::exchange(attached_, true)) {
    if (sharing().comm) {
      share_products(*sharing().comm, model_, source_.B(), source_.T(), micro_steps_);
    }
    optimizer_.attach(model_);
  }
  if (step_ == 0 && config_.val_every > 0 && last_val_step_ != 0) validate();
  if (step_ == 0 && config_.eval_choices_every > 0 && last_choices_step_ != 0) ask_choices();
  bool paused = true;
  while (step_ < total_steps_ && !stop_asked()) {
    if (writer_) writer_->check();
    if (sharing().comm) sharing().comm->check();
    if (paused) mark(step_).record(model_.stream());
    queue_step();
    mark(step_ + 1).record(model_.stream());
    finish_pending();
    snapshot_step();
    ++step_;
    const bool last = step_ == total_steps_;
    paused = due(config_.val_every, last) || due(config_.eval_choices_every, last) ||
             due(config_.sample_every, last) || due(config_.checkpoint_every, last);
    if (paused) {
      finish_pending();
      if (stop_ != StopReason::kBadSteps) at_intervals(last);
    }
  }
  finish_pending();
  if (!stop_ && step_ < total_steps_) {
    stop_ = StopReason::kSignal;
    signal_ = stop_flag();
  }
  if (stop_ && *stop_ != StopReason::kBadSteps) save();
  if (writer_) writer_->wait();

  StopEvent stop;
  stop.step = step_;
  stop.reason = stop_.value_or(StopReason::kFinished);
  stop.signal = signal_;
  stop.seconds = ms_since(began) / 1000;
  stop.val_loss = last_val_loss_;
  stop.best_loss = best_loss_;
  stop.best_step = best_step_;
  emit(stop);
  return stop;
}

// The host runs one step ahead: it queues a step before it reads what came of the step before.
void Trainer::queue_step() {
  model_.begin_step({.lr = schedule_.lr(step_),
                     .seed = static_cast<std::uint64_t>(config_.seed),
                     .step = step_,
                     .nominal_tokens = static_cast<double>(tokens_per_step()),
                     .stop = sink_asks_stop_ ? kStopOfSink : stop_flag()},
                    static_cast<int>(micro_steps_));
  for (std::int64_t i = 0; i < micro_steps_; ++i) {
    source_.next(batch_);
    model_.forward(batch_.inputs, batch_.targets, source_.B(), source_.T());
    model_.backward();
  }
  optimizer_.step(model_.stream(), model_.step_block());
}

void Trainer::warn_of_useless_options() const {
  if (sharing().rank() != 0) return;
  if (step_ >= total_steps_) {
    log(LogLevel::kWarning, concat("nothing to do: the run has made ", step_, " of ", total_steps_,
                                   " steps; raise max_steps to go on"));
  }
  if (config_.warmup_steps >= total_steps_) {
    log(LogLevel::kWarning,
        concat("the learning rate never reaches lr: warmup_steps (", config_.warmup_steps,
               ") is not below the run's ", total_steps_, " steps"));
  }
}

void Trainer::snapshot_step() {
  snapshot_.start(model_.stream(), model_.step_block());
  pending_ = true;
}

void Trainer::finish_pending() {
  if (!pending_) return;
  pending_ = false;
  StepBlock block;
  std::memcpy(&block, snapshot_.wait(), sizeof block);
  finish_step(block);
}

void Trainer::finish_step(const StepBlock& block) {
  const std::int64_t step = block.step + 1;
  const double ms = 1000 * mark(step).since(mark(step - 1));
  // Bias-corrected: the mean of all steps at first, a moving average later.
  const double first_weight = 1.0 / static_cast<double>(++timed_steps_);
  mean_ms_ += (ms - mean_ms_) * std::max(kTimeWeight, first_weight);
  pace_ms_ += (ms - pace_ms_) * std::max(kPaceWeight, first_weight);
  updates_ = block.updates;
  hear_stop(block);
  last_step_finite_ = block.skip != kNonFiniteLoss && block.skip != kNonFiniteGradient;
  if (block.skip != kNoSkip) {
    ++bad_in_a_row_;
    emit(SkipEvent{step, static_cast<SkipReason>(block.skip), block.loss, block.grad_norm,
                   bad_in_a_row_});
    if (bad_in_a_row_ >= config_.max_bad_steps) stop_ = StopReason::kBadSteps;
    return;
  }
  bad_in_a_row_ = 0;
  StepEvent event;
  event.step = step;
  event.total_steps = total_steps_;
  event.loss = block.loss;
  event.grad_norm = block.grad_norm;
  event.lr = block.lr;
  event.tokens = step * tokens_per_step();
  event.ms = ms;
  event.tokens_per_s = static_cast<double>(tokens_per_step()) / (mean_ms_ / 1000);
  const TransformerOptions& options = model_.options();
  if (const auto peak = model_.stream().device().peak_flops(options.dtype, options.tf32)) {
    event.mfu =
        event.tokens_per_s * model_.config().flops_per_token(source_.T()) / (*peak * options.ranks);
  }
  event.seconds_left = static_cast<double>(total_steps_ - step) * pace_ms_ / 1000;
  event.log =
      config_.log_every > 0 && (step == 1 || step == total_steps_ || step % config_.log_every == 0);
  emit(event);
}

// One rank need not ask itself: it stops a step earlier.
void Trainer::hear_stop(const StepBlock& block) {
  if (sharing().ranks() == 1 || block.stop == 0 || stop_ || step_ == total_steps_) return;
  stop_ = block.stop == kStopOfSink ? StopReason::kSink : StopReason::kSignal;
  if (stop_ == StopReason::kSignal) signal_ = block.stop;
}

std::int64_t Trainer::tokens_per_step() const {
  return micro_steps_ * source_.B() * source_.T() * model_.options().ranks;
}

bool Trainer::due(std::int64_t interval, bool last) const {
  return interval > 0 && (last || step_ % interval == 0);
}

void Trainer::at_intervals(bool last) {
  if (due(config_.val_every, last)) validate();
  if (due(config_.eval_choices_every, last)) ask_choices();
  if (due(config_.sample_every, last)) sample();
  if (due(config_.checkpoint_every, last)) save();
}

void Trainer::validate() {
  if (!val_source_) return;
  const auto began = Clock::now();
  const Evaluation evaluation = evaluator_.run(*val_source_, config_.val_tokens, sharing().comm);
  ValEvent event;
  event.step = step_;
  event.loss = evaluation.mean_loss();
  event.tokens = evaluation.counted_tokens;
  if (val_facts_.bytes_per_token) {
    event.bits_per_byte = evaluation.bits_per_byte(*val_facts_.bytes_per_token);
  }
  event.ms = ms_since(began);
  event.best = std::isfinite(event.loss) && (!best_loss_ || event.loss < *best_loss_);
  if (event.best) {
    best_loss_ = event.loss;
    best_step_ = step_;
  }
  last_val_loss_ = event.loss;
  last_val_step_ = step_;
  emit(event);
}

void Trainer::ask_choices() {
  if (choices_.empty()) return;
  const auto began = Clock::now();
  ChoicesEvent event;
  event.step = step_;
  event.accuracy = accuracy_of(choices_, evaluator_.choose(choices_, sharing().comm));
  event.ms = ms_since(began);
  last_choices_step_ = step_;
  emit(event);
}

// A model that cannot be sampled, such as one with infinite logits, can still be trained.
void Trainer::sample() {
  if (sharing().rank() != 0) return;
  SampleEvent event{step_, {}};
  try {
    event.text = sampled_text();
  } catch (const Error& error) {
    log(LogLevel::kWarning, concat("no sample after step ", step_, ": ", error.what()));
    return;
  }
  emit(event);
}

std::string Trainer::sampled_text() {
  const std::vector<std::int32_t> prompt = {tokenizer_ ? tokenizer_->begin_of_text() : 0};
  std::vector<std::int32_t> ids = sampler_->generate(prompt, config_.sample_tokens, {}, step_);
  if (tokenizer_) {
    if (!ids.empty() && ids.back() == tokenizer_->begin_of_text()) ids.pop_back();
    return tokenizer_->decode(ids);
  }
  std::string text;
  for (const std::int32_t id : ids) text += concat(text.empty() ? "" : " ", id);
  return text;
}

void Trainer::save() {
  if (!writer_ || last_saved_step_ == step_) return;
  if (!last_step_finite_) {
    log(LogLevel::kWarning,
        concat("no checkpoint after step ", step_, ": its loss or gradient was not finite"));
    return;
  }
  const auto began = Clock::now();
  CheckpointInfo info;
  info.step = step_;
  info.model = model_.config();
  info.train_config = config_text(config_);
  info.seeds = {{"run", static_cast<std::uint64_t>(config_.seed)}};
  info.loader = source_.state();
  info.updates = updates_;
  info.tokenizer_hash = tokenizer_hash_;
  if (last_val_step_ == step_) info.val_loss = last_val_loss_;
  info.extra["bad_in_a_row"] = std::to_string(bad_in_a_row_);
  const std::string choices = matmul_choices(model_.stream());
  if (!choices.empty()) info.extra["matmul_choices"] = choices;
  if (best_loss_) {
    info.extra["best_loss"] = exact_text(*best_loss_);
    info.extra["best_step"] = std::to_string(best_step_);
  }
  writer_->save(model_.stream(), std::move(info));
  last_saved_step_ = step_;
  emit(CheckpointEvent{step_, checkpoint_folder(run_, step_), ms_since(began)});
}

void Trainer::resume(CheckpointReader& checkpoint) {
  const CheckpointInfo& info = checkpoint.info();
  const auto choices = info.extra.find("matmul_choices");
  if (choices != info.extra.end()) set_matmul_choices(model_.stream(), choices->second);
  checkpoint.read_all(model_.stream(), model_.parameters(), optimizer_, model_.step_block());
  source_.restore(info.loader);
  step_ = info.step;
  updates_ = info.updates;
  bad_in_a_row_ = read_extra<std::int64_t>(info, "bad_in_a_row").value_or(0);
  best_loss_ = read_extra<double>(info, "best_loss");
  best_step_ = read_extra<std::int64_t>(info, "best_step").value_or(0);
  last_val_loss_ = info.val_loss;
  if (info.val_loss) last_val_step_ = step_;
}

void Trainer::emit(const Event& event) {
  for (std::size_t i = 0; i < sinks_.size();) {
    try {
      if (sinks_[i]->on_event(event) == SinkAction::kStop) sink_asks_stop_ = true;
      ++i;
    } catch (const std::exception& error) {
      log(LogLevel::kWarning,
          concat("an event sink failed and is left out from now on: ", error.what()));
      sinks_.erase(sinks_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (sink_asks_stop_ && !stop_ && sharing().ranks() == 1) stop_ = StopReason::kSink;
}

int Trainer::stop_flag() const {
  return stop_flag_ ? stop_flag_->load(std::memory_order_relaxed) : 0;
}

bool Trainer::stop_asked() const {
  return stop_ || (sharing().ranks() == 1 && stop_flag() != 0);
}

StartEvent Trainer::start_event() const {
  StartEvent event;
  event.config = config_text(config_);
  event.out_dir = run_.string();
  event.device = model_.stream().device().name();
  if (sharing().ranks() > 1) event.device += concat(" on each of ", sharing().ranks(), " ranks");
  event.parameters = model_.config().num_parameters();
  event.flops_per_token = model_.config().flops_per_token(source_.T());
  event.micro_batch = source_.B();
  event.seq_len = source_.T();
  event.micro_steps = micro_steps_;
  event.tokens_per_step = tokens_per_step();
  event.first_step = step_;
  event.total_steps = total_steps_;
  event.train_tokens = source_.tokens_per_epoch();
  event.val_tokens = validation_tokens();
  event.val_entropy_bits_per_byte = val_facts_.entropy_bits_per_byte;
  return event;
}

std::int64_t Trainer::validation_tokens() const {
  if (!val_source_ || config_.val_every == 0) return 0;
  const std::int64_t all = val_source_->tokens_per_epoch();
  if (config_.val_tokens == 0) return all;
  const std::int64_t T = val_source_->T();
  const std::int64_t some = (config_.val_tokens + T - 1) / T * T;
  return all > 0 ? std::min(all, some) : some;
}

}  // namespace llmc
