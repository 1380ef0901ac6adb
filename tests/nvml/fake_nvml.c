/* Which answers would NVML give on a machine that is described in a text file?
 *
 * Built as libnvidia-ml.so.1, it reads the file that FAKE_NVML_SCRIPT names, again whenever that
 * was replaced, so a test changes the machine while it is watched. A line is a key, a space and a
 * value; what no line gives is NOT_SUPPORTED. scripted.py writes such files and lists the keys.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       TIMEOUT = 10, LOST = 15 };
enum { MAX_GPUS = 16, MAX_MIGS = 8, MAX_TEXT = 1 << 18 };

typedef struct Device {
    char prefix[16]; /* of its keys: "3." or "3.mig1." */
    int gpu;
    int lost; /* once lost, lost until the library is started anew */
} Device;

static Device gpus[MAX_GPUS], migs[MAX_GPUS][MAX_MIGS];
static int references;
static unsigned events_told;
static char text[MAX_TEXT];
static struct stat known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void reload(void)
{
    const char *path = getenv("FAKE_NVML_SCRIPT");
    struct stat now;
    if (!path || stat(path, &now))
        return;
    if (now.st_ino == known.st_ino && now.st_mtim.tv_nsec == known.st_mtim.tv_nsec &&
        now.st_mtim.tv_sec == known.st_mtim.tv_sec)
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    text[fread(text, 1, MAX_TEXT - 1, file)] = 0;
    fclose(file);
    known = now;
}

/* The value of a key, copied; 0 where there is none. */
static int find(const char *prefix, const char *key, char *value, size_t room)
{
    char wanted[160];
    int length = snprintf(wanted, sizeof wanted, "\n%s%s ", prefix, key), is_there = 0;
    pthread_mutex_lock(&lock);
    reload();
    char *at = strstr(text, wanted);
    if (at) {
        at += length;
        size_t size = strcspn(at, "\n");
        size = size < room ? size : room - 1;
        memcpy(value, at, size);
        value[size] = 0;
        is_there = 1;
    }
    pthread_mutex_unlock(&lock);
    return is_there;
}

static long long number(const char *prefix, const char *key, long long otherwise)
{
    char value[64];
    return find(prefix, key, value, sizeof value) ? atoll(value) : otherwise;
}

/* Hangs for as long as the file says so, a minute at most; then fails if the file says so. */
static int enter(Device *device, const char *function)
{
    char key[128];
    struct timespec pause = {0, 5 * 1000 * 1000};
    if (!references)
        return UNINITIALIZED;
    snprintf(key, sizeof key, "hang.%s", function);
    for (int slept = 0; slept < 12000 && number("", key, 0); slept++)
        nanosleep(&pause, NULL);
    if (!device)
        return OK;
    if (!device->prefix[0])
        return INVALID;
    int lost = (int)number(gpus[device->gpu].prefix, "lost", 0);
    if (lost)
        gpus[device->gpu].lost = lost;
    if (gpus[device->gpu].lost)
        return gpus[device->gpu].lost;
    snprintf(key, sizeof key, "fail.%s", function);
    return (int)number(device->prefix, key, OK);
}

/* The numbers after a key: how many there are, or a negative error. */
static int numbers(Device *device, const char *function, const char *key, long long *into, int most)
{
    char value[256], *at = value, *end;
    int code = enter(device, function), count = 0;
    if (code)
        return -code;
    if (!find(device->prefix, key, value, sizeof value))
        return -NOT_SUPPORTED;
    for (; count < most; count++, at = end) {
        into[count] = strtoll(at, &end, 0);
        if (end == at)
            break;
    }
    return count;
}

static int one(Device *device, const char *function, const char *key, unsigned *into)
{
    long long value;
    int count = numbers(device, function, key, &value, 1);
    if (count < 1)
        return count ? -count : NOT_SUPPORTED;
    *into = (unsigned)value;
    return OK;
}

static int string(Device *device, const char *function, const char *key, char *into, unsigned room)
{
    int code = enter(device, function);
    return code ? code : find(device->prefix, key, into, room) ? OK : NOT_SUPPORTED;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int code = (int)number("", "init", OK);
    if (code)
        return code;
    if (!references++) {
        memset(gpus, 0, sizeof gpus);
        memset(migs, 0, sizeof migs);
    }
    return OK;
}

int nvmlShutdown(void)
{
    if (!references)
        return UNINITIALIZED;
    references--;
    return OK;
}

const char *nvmlErrorString(int code)
{
    (void)code;
    return "an error of the scripted library";
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)number("", "gpus", 0);
    return enter(NULL, "nvmlDeviceGetCount");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device)
{
    if (index >= MAX_GPUS)
        return INVALID;
    gpus[index].gpu = (int)index;
    snprintf(gpus[index].prefix, sizeof gpus[index].prefix, "%u.", index);
    *device = &gpus[index];
    return enter(*device, "nvmlDeviceGetHandleByIndex");
}

int nvmlDeviceGetUUID(Device *d, char *into, unsigned room)
{
    return string(d, __func__, "uuid", into, room);
}

int nvmlDeviceGetName(Device *d, char *into, unsigned room)
{
    return string(d, __func__, "name", into, room);
}

int nvmlDeviceGetUtilizationRates(Device *d, unsigned *rates)
{
    long long said[2];
    int count = numbers(d, __func__, "utilization", said, 2);
    if (count < 0)
        return -count;
    rates[0] = (unsigned)said[0];
    rates[1] = (unsigned)said[1];
    return OK;
}

typedef struct { unsigned version; unsigned long long all, kept, free, used; } Memory;

/* "memory ALL RESERVED USED" */
int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory *memory)
{
    long long said[3];
    int count = numbers(d, __func__, "memory", said, 3);
    if (count < 0)
        return -count;
    memory->all = (unsigned long long)said[0];
    memory->kept = (unsigned long long)said[1];
    memory->used = (unsigned long long)said[2];
    memory->free = memory->all - memory->kept - memory->used;
    return OK;
}

#define UNSIGNED(function, key)                          \
    int function(Device *d, unsigned *into)              \
    {                                                    \
        return one(d, __func__, key, into);              \
    }

UNSIGNED(nvmlDeviceGetPowerUsage, "power")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UNSIGNED(nvmlDeviceGetPerformanceState, "performance_state")
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_limit")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_limit")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "mig_places")
UNSIGNED(nvmlDeviceGetGpuInstanceId, "gpu_instance")
UNSIGNED(nvmlDeviceGetComputeInstanceId, "compute_instance")

/* A key and a number in one: "clock.1", "threshold.0", "nvlink.3". */
#define BY_NUMBER(function, key)                         \
    int function(Device *d, unsigned which, unsigned *into) \
    {                                                    \
        char name[64];                                   \
        snprintf(name, sizeof name, key ".%u", which);   \
        return one(d, __func__, name, into);             \
    }

BY_NUMBER(nvmlDeviceGetTemperature, "temperature")
BY_NUMBER(nvmlDeviceGetTemperatureThreshold, "threshold")
BY_NUMBER(nvmlDeviceGetClockInfo, "clock")
BY_NUMBER(nvmlDeviceGetMaxClockInfo, "clock_limit")
BY_NUMBER(nvmlDeviceGetNvLinkState, "nvlink")

#define BUSY(function, key)                              \
    int function(Device *d, unsigned *share, unsigned *period) \
    {                                                    \
        *period = 100000;                                \
        return one(d, __func__, key, share);             \
    }

BUSY(nvmlDeviceGetEncoderUtilization, "encoder")
BUSY(nvmlDeviceGetDecoderUtilization, "decoder")

#define MASK(function, key)                              \
    int function(Device *d, unsigned long long *mask)    \
    {                                                    \
        unsigned said;                                   \
        int code = one(d, __func__, key, &said);         \
        *mask = code ? 0 : said;                         \
        return code;                                     \
    }

MASK(nvmlDeviceGetCurrentClocksEventReasons, "throttle")
MASK(nvmlDeviceGetSupportedClocksEventReasons, "throttle_supported")

typedef struct { unsigned version; int degrees; } Margin;

int nvmlDeviceGetMarginTemperature(Device *d, Margin *margin)
{
    return one(d, __func__, "margin", (unsigned *)&margin->degrees);
}

int nvmlDeviceGetViolationStatus(Device *d, unsigned policy, unsigned long long *times)
{
    char name[64];
    long long said;
    snprintf(name, sizeof name, "throttle_time.%u", policy);
    int count = numbers(d, __func__, name, &said, 1);
    if (count < 0)
        return -count;
    times[0] = 0;
    times[1] = (unsigned long long)said;
    return OK;
}

typedef struct {
    uint32_t id, scope;
    int64_t at, latency;
    uint32_t type, code;
    union { double real; uint32_t small; uint64_t large; int64_t negative; } value;
} Field;

/* "field.ID" or "field.ID.SCOPE": the type of the value and the value. */
int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields)
{
    int code = enter(d, __func__);
    if (code)
        return code;
    for (int at = 0; at < count; at++) {
        char name[64];
        long long said[2];
        snprintf(name, sizeof name, fields[at].scope ? "field.%u.%u" : "field.%u", fields[at].id,
                 fields[at].scope);
        int found = numbers(d, name, name, said, 2);
        fields[at].code = found < 0 ? (uint32_t)-found : OK;
        if (found < 2)
            continue;
        fields[at].type = (uint32_t)said[0];
        if (said[0] == 0)
            fields[at].value.real = (double)said[1];
        else if (said[0] == 1)
            fields[at].value.small = (uint32_t)said[1];
        else
            fields[at].value.large = (uint64_t)said[1];
    }
    return OK;
}

int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending)
{
    int code = one(d, __func__, "mig", current);
    *pending = code ? 0 : *current;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned place, Device **into)
{
    char value[128];
    int code = enter(d, __func__);
    if (code || place >= MAX_MIGS)
        return code ? code : INVALID;
    Device *mig = &migs[d->gpu][place];
    mig->gpu = d->gpu;
    snprintf(mig->prefix, sizeof mig->prefix, "%d.mig%u.", d->gpu, place);
    *into = mig;
    return find(mig->prefix, "uuid", value, sizeof value) ? OK : NOT_FOUND;
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} Process;

/* "processes PID:MEMORY:GPU_INSTANCE:COMPUTE_INSTANCE ..." */
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *into)
{
    char value[1024], *at, *rest = value;
    unsigned room = *count, found = 0;
    int code = enter(d, __func__);
    if (code)
        return code;
    if (!find(d->prefix, "processes", value, sizeof value))
        return NOT_SUPPORTED;
    while ((at = strtok_r(rest, " ", &rest))) {
        Process one_of_them;
        if (sscanf(at, "%u:%llu:%u:%u", &one_of_them.pid, &one_of_them.memory,
                   &one_of_them.gpu_instance, &one_of_them.compute_instance) != 4)
            continue;
        if (into && found < room)
            into[found] = one_of_them;
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}

typedef struct {
    unsigned pid;
    unsigned long long at;
    unsigned sm, memory, encoder, decoder;
} Sample;

/* "samples PID:MICROSECONDS:SM:MEMORY:ENCODER:DECODER ..." */
int nvmlDeviceGetProcessUtilization(Device *d, Sample *into, unsigned *count,
                                    unsigned long long since)
{
    char value[1024], *at, *rest = value;
    unsigned room = *count, found = 0;
    int code = enter(d, __func__);
    if (code)
        return code;
    if (!find(d->prefix, "samples", value, sizeof value))
        return NOT_SUPPORTED;
    while ((at = strtok_r(rest, " ", &rest))) {
        Sample sample;
        if (sscanf(at, "%u:%llu:%u:%u:%u:%u", &sample.pid, &sample.at, &sample.sm, &sample.memory,
                   &sample.encoder, &sample.decoder) != 6 || sample.at <= since)
            continue;
        if (into && found < room)
            into[found] = sample;
        found++;
    }
    *count = found;
    return !found ? NOT_FOUND : found > room ? TOO_SMALL : OK;
}

int nvmlEventSetCreate(void **set)
{
    *set = &events_told;
    return enter(NULL, __func__);
}

int nvmlDeviceRegisterEvents(Device *d, unsigned long long types, void *set)
{
    (void)types, (void)set;
    unsigned is_told;
    return one(d, __func__, "xids", &is_told);
}

typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;

/* "event.N GPU XID", N from 0: each is told once. */
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms)
{
    char key[32], value[64];
    unsigned gpu;
    (void)set, (void)timeout_ms;
    int code = enter(NULL, __func__);
    if (code)
        return code;
    snprintf(key, sizeof key, "event.%u", events_told);
    if (!find("", key, value, sizeof value) || sscanf(value, "%u %llu", &gpu, &event->data) != 2)
        return TIMEOUT;
    events_told++;
    event->device = &gpus[gpu % MAX_GPUS];
    event->type = 8;
    return OK;
}
