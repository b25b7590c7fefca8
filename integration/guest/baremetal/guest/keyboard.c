/* A keyboard: a HID device with the boot protocol (HID 1.11, appendix B). */

#include "usb.h"

enum { ADDRESS = 2, SET_IDLE = 0x0a };

void keyboard_start(struct keyboard *keyboard, struct host *host)
{
    int length;
    const uint8_t *all = device_start(host, ADDRESS, &length);
    bool found = false;
    uint8_t in = 0;
    for (int at = 0; at + 2 <= length && all[at] >= 2; at += all[at]) {
        const uint8_t *d = &all[at];
        if (d[1] == INTERFACE)
            found = d[5] == 3 && d[6] == 1 && d[7] == 1;
        if (d[1] == ENDPOINT && found && d[2] & 0x80)
            in = d[2] & 0xf;
    }
    if (!in)
        fail("%s: the second device is no keyboard", host->name);
    /* Reports when something changes, and not again and again (HID 1.11, 7.2.4). */
    expect(host, "SET_IDLE", request(host, 0x21, SET_IDLE, 0, 0), 0);
    print("%s: a keyboard\n", host->name);
    keyboard->host = host;
    host->listen(host, ADDRESS, in, keyboard->report, sizeof keyboard->report);
}
